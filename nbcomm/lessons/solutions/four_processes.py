def gather_all(value):
    return [broadcast(value, src=source) for source in range(world_size)]


def sum_all(tensor):
    part = reduce_scatter(tensor)
    return all_gather(part, mode="cat")
