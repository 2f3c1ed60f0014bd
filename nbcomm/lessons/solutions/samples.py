def my_share(length, epoch):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[rank::world_size]


def accuracy(predicted, wanted):
    right, count = all_reduce(torch.tensor([(predicted == wanted).sum(), len(wanted)]))
    return (right / count).item()
