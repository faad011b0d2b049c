"""From what a row holds to tokens and patches. Opens no source and decodes no file."""
