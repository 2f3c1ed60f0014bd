def gpipe(stage, inputs, loss):
    kept = []
    for x in inputs:
        if rank > 0:
            x = recv(rank - 1).requires_grad_()
        y = stage(x)
        if rank < world_size - 1:
            send(y.detach(), rank + 1)
        kept.append((x, y))
    for x, y in kept:
        if rank == world_size - 1:
            loss(y).backward()
        else:
            y.backward(recv(rank + 1))
        if rank > 0:
            send(x.grad, rank - 1)


def one_forward_one_backward(stage, inputs, loss):
    kept, sent = [], []

    def forward(x):
        if rank > 0:
            x = recv(rank - 1).requires_grad_()
        y = stage(x)
        if rank < world_size - 1:
            sent.append(isend(y.detach(), rank + 1))
        kept.append((x, y))

    def backward():
        x, y = kept.pop(0)
        if rank == world_size - 1:
            loss(y).backward()
        else:
            y.backward(recv(rank + 1))
        if rank > 0:
            sent.append(isend(x.grad, rank - 1))

    first = min(world_size - rank - 1, len(inputs))
    for x in inputs[:first]:
        forward(x)
    for x in inputs[first:]:
        forward(x)
        backward()
    for _ in range(first):
        backward()
    for handle in sent:
        handle.wait()
