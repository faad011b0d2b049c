"""What one trainer library needs, a file each. None is imported by the client itself."""
