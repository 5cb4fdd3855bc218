"""What is put into a running script, one module per item; each is applied, refused or switched off."""
