"""The notebook's side: it steers ranks, shows their output, and never imports torch. Read `session.session` first."""
