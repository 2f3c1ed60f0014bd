"""Process groups that can be aborted and formed again: the world, what torch hands out, the rendezvous."""
