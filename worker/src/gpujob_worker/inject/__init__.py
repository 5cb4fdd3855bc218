"""What is put into a running script, a module per item: applied, refused or switched off."""
