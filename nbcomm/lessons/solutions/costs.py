def ring_all_reduce(tensor):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    parts = list(tensor.clone().chunk(world_size))

    def pass_on(number):
        """Send one part to the right, and return the part before it, which comes from the left."""
        sent = isend(parts[number % world_size], right)
        came = irecv(left)
        received = came.wait()
        sent.wait()
        return received

    for step in range(world_size - 1):
        received = pass_on(rank - step)
        parts[(rank - step - 1) % world_size] += received
    for step in range(world_size - 1):
        parts[(rank - step) % world_size] = pass_on(rank + 1 - step)
    return torch.cat(parts)
