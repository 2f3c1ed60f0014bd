"""Process groups that can be aborted and re-formed: the world, what torch hands out, the rendezvous."""
