"""What users type: magics and their arguments, completion, and which cells go to the ranks."""
