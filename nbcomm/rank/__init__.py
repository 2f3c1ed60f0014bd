"""The process of a rank: its engine, its end of the link, its main loop, and how a request ends."""
