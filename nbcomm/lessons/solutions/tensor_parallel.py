class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, grad):
        return all_reduce(grad)


class _AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return all_reduce(x)

    @staticmethod
    def backward(context, grad):
        return grad


def parallel_mlp(first, second):
    rows = torch.nn.Parameter(first.chunk(world_size)[rank].clone())
    columns = torch.nn.Parameter(second.chunk(world_size, dim=1)[rank].clone())

    def forward(x):
        hidden = torch.nn.functional.gelu(_Copied.apply(x) @ rows.T)
        return _AddedUp.apply(hidden @ columns.T)

    return forward, rows, columns


def mended_product(columns, rows):
    from torch.distributed.tensor import DTensor, Partial, init_device_mesh

    mesh = init_device_mesh("cpu", (world_size,))
    return DTensor.from_local(columns @ rows, mesh, [Partial()]).full_tensor()
