def ring_attention(query, key, value):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    count, width = query.shape
    own = rank * count + torch.arange(count)
    block = torch.stack([key, value])
    largest, total, out = torch.full((count, 1), -torch.inf), torch.zeros(count, 1), torch.zeros_like(query)
    for step in range(world_size):
        source = (rank - step) % world_size
        key, value = block
        scores = query @ key.T / width**0.5
        scores = scores.masked_fill(own[:, None] < source * count + torch.arange(count), -torch.inf)
        before, largest = largest, torch.maximum(largest, scores.amax(1, keepdim=True))
        weights, shrink = torch.exp(scores - largest), torch.exp(before - largest)
        total = total * shrink + weights.sum(1, keepdim=True)
        out = out * shrink + weights @ value
        if step < world_size - 1:
            block = sendrecv(block, right, left)
    return out / total


def dispatch(tokens, expert_of, expert):
    order = torch.argsort(expert_of)
    counts = torch.bincount(expert_of, minlength=world_size).tolist()
    arrived = all_to_all(list(tokens[order].split(counts)))
    back = all_to_all([expert(each) for each in arrived])
    result = torch.empty_like(tokens)
    result[order] = torch.cat(back)
    return result
