"""What asks a vendor's library about a GPU."""
