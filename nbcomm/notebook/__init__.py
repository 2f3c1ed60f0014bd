"""The notebook's side: it steers ranks, shows what they do, and never imports torch. Read `session.session` first."""
