"""Text generators: their interface, their kinds, and the author that turns a method's orders into samples."""
