"""The searches that ship, one file each; the file's name is the search's."""
