def sharded_adam(model):
    parameters = list(model.parameters())
    load, owner = [0] * world_size, {}
    for parameter in sorted(parameters, key=lambda each: -each.numel()):
        owner[parameter] = load.index(min(load))
        load[owner[parameter]] += parameter.numel()
    mine = [parameter for parameter in parameters if owner[parameter] == rank]
    optimizer = torch.optim.Adam(mine, 0.01, eps=0.001) if mine else None

    def step():
        for parameter in parameters:
            parameter.grad = all_reduce(parameter.grad, "mean")
        if optimizer is not None:
            optimizer.step()
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(broadcast(parameter.detach(), src=owner[parameter]))

    return step


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(context, x, shard):
        context.save_for_backward(x, shard)
        return x @ all_gather(shard, mode="cat").T

    @staticmethod
    def backward(context, grad):
        x, shard = context.saved_tensors
        weight = all_gather(shard, mode="cat")
        return grad @ weight, reduce_scatter(grad.T @ x, "mean")


def sharded_linear(weight):
    shard = torch.nn.Parameter(weight.chunk(world_size)[rank].clone())
    return lambda x: _Gathered.apply(x, shard), shard
