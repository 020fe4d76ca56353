"""Which release to serve, and how it is loaded while another one answers."""
