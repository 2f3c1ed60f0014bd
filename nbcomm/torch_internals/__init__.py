"""Every private interface of torch that nbcomm uses, checked at start; imports nothing of nbcomm.

Read in torch 2.13.0, 2.14.1 and 2.15.0; with each new version, look again for a public way.

* ``_new_process_group_helper``, replaced: "gloo" and "nccl" give groups of ours. No public way:
  `register_backend` takes new names only.
* ``_world`` (groups, names, their count): the same names on all ranks, also on a new rank. No public way.
* ``_world.pg_coalesce_state``, DTensor's ``_custom_op_handlers``, and what `context_parallel` replaces: closed where a
  cell has left a block that torch does not close. No public way.
* ``_new_group_with_tag``, replaced: each creation of a group is seen, and compared. No public way:
  modules have imported `new_group` already.
* ``Work.wait``, replaced: waits are seen, and can be ended. No public way: 2.15 has hooks for the ends only.
* ``ProcessGroupGloo._Options``, ``create_device``, ``create_default_device``: where gloo listens is known, and so which
  connections are its own. No public way: a group does not tell.
* ``distributed_c10d.ProcessGroupGloo``, replaced: the same for the groups that torch itself makes. No public way.
* ``pt_gloo_runloop``, the name of gloo's worker threads: a script does not end while one still holds a call's tensors.
  No public way.
* ``_register_backend`` and its like: torch's own group inside ours. No public way.
* ``autograd._profiler_enabled`` and ``_len_torch_dispatch_stack``: where nobody watches torch's dispatcher, a call goes
  past it. No public way; without them every call goes through it.
* ``rendezvous._rendezvous_handlers``: a cell's `init_process_group` opens no port. No public
  way: a handler cannot be replaced.
* ``ProcessGroupNCCL.Options``, ``eager_connect_single_device``, ``bound_device_id``: a group is connected while all its
  members meet. `init_process_group(device_id=…)` does so only for groups that torch makes.
* DDP's ``_ddp_init_helper``, ``reducer``: a module is reset after an abort. No public way;
  FSDP2 has one from 2.13 on, which is used; before, its state is dropped by hand.
* ``torch.compile``, replaced, and Dynamo's ``trace_rules.add``: compiled code may use our groups. No public way:
  `torch.compiler.disable` imports Dynamo, which is slow.
* The caches in ``torch.distributed.tensor``, cleared: they answer for a mesh with an equal one whose groups were
  destroyed. No public way.
* ``torch.distributed.tensor._utils.compute_local_shape_and_global_offset``: where a rank's part of a DTensor is, for a
  chart. No public way that knows the placements which FSDP2 makes over another one.

C++ calls a group written in Python by its methods (``allreduce``, ``getSize``, …), which `check` tries. Since 2.14 a
backend may be able to ``reconfigure`` itself, an experiment of torch that may replace much of this later.
"""
