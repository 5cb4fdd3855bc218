"""What is put into a running script, a module per item: applied, skipped or switched off."""
