"""One command for every published figure. Nothing here is part of the product."""
