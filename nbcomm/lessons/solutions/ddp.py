def average_while_backward(model):
    begun = []

    def begin(parameter):
        begun.append((parameter, all_reduce(parameter.grad, "mean", async_op=True)))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(begin)

    def finish():
        while begun:
            parameter, coming = begun.pop(0)
            parameter.grad = coming.wait()

    return finish


def accumulate(model, batches):
    for batch in batches:
        (model(batch) / len(batches)).backward()
    for parameter in model.parameters():
        parameter.grad = all_reduce(parameter.grad, "mean")
