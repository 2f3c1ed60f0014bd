def checkpoint(run, kept=None):
    from copy import deepcopy

    if kept is None:
        state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
        return deepcopy({**state, "order": run.order, "position": run.position, "random": torch.get_rng_state()})
    run.model.load_state_dict(kept["model"])
    run.optimizer.load_state_dict(kept["optimizer"])
    run.order, run.position = kept["order"], kept["position"]
    torch.set_rng_state(kept["random"])


def reshard(rows, ranks):
    now = len(rows)
    then = now * world_size // ranks

    def shared(source, target):
        """Return the rows of one rank now that are another's then, as numbers of the whole tensor."""
        if target >= ranks:
            return range(0)
        return range(max(source * now, target * then), min((source + 1) * now, (target + 1) * then))

    sent = []
    for target in range(world_size):
        numbers = shared(rank, target)
        if len(numbers) and target != rank:
            sent.append(isend(rows[numbers.start - rank * now : numbers.stop - rank * now].clone(), target))
    parts = []
    for source in range(world_size):
        numbers = shared(source, rank)
        if len(numbers):
            own = rows[numbers.start - rank * now : numbers.stop - rank * now]
            parts.append(own if source == rank else recv(source))
    for handle in sent:
        handle.wait()
    return torch.cat(parts) if parts else None
