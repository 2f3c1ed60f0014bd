def deal_out(numbers):
    items = [numbers[2 * each : 2 * each + 2] for each in range(world_size)] if rank == 0 else None
    return scatter(items)


def sentence(word):
    words = gather(word, dst=1)
    return " ".join(words) if rank == 1 else None


def mean_of_all(batch):
    total = all_reduce({"sum": batch.sum().item(), "count": len(batch)})
    return total["sum"] / total["count"]


def best_rank(loss):
    losses = all_gather(loss, mode="object")
    return losses.index(min(losses))


def row_numbers(rows):
    begin = scan(rows, exclusive=True)
    return begin, begin + rows - 1


def sum_of_color(color, number):
    return all_reduce(number, group=split_group(color))
