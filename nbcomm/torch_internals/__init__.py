"""Every private interface of torch that nbcomm touches, checked at start; imports nothing of nbcomm.

Read in torch 2.13.0, 2.14.1 and 2.15.0; whether there is a public way is asked again with each version.

* ``_new_process_group_helper``, replaced: "gloo" and "nccl" are groups of ours, by name. No public way:
  `register_backend` takes new names only.
* ``_world`` (groups, names, their count): the same names on all ranks, also on a new one. No public way.
* ``_new_group_with_tag``, replaced: who makes a group is seen, and compared. No public way:
  modules hold `new_group` already.
* ``Work.wait``, replaced: who waits is seen; a wait is ended. No public way: 2.15 has hooks for ends.
* ``ProcessGroupGloo._Options``, ``create_device``: gloo's connections have an address of their own. No public way.
* ``pt_gloo_runloop``, the name of gloo's worker threads: a script does not end while one still holds a call's tensors.
  No public way.
* ``_register_backend`` and its like: torch's own group inside ours. No public way.
* ``rendezvous._rendezvous_handlers``: a cell's `init_process_group` opens no port. No public
  way: a handler is never replaced.
* DDP's ``_ddp_init_helper``, ``reducer``: a module begins again after an abort. No public way;
  FSDP2 has one, which is used.
* ``torch.compile``, replaced, and Dynamo's ``trace_rules.add`` and ``_builtin_constant_ids``: compiled code
  may use our groups and the names of cells. No public way: `torch.compiler.disable` imports Dynamo, which is slow.

C++ calls a group written in Python by its methods (``allreduce``, ``getSize``, …), which `check` tries. Since 2.14 a
backend may be able to ``reconfigure`` itself, an experiment of torch's that may replace much of this one day.
"""
