import random, sys
from tests.notebook.programs import *
from nbcomm.notebook.verdict import judge


def run(seed):
    r = random.Random(seed)
    n = r.randint(2, 5)
    groups = [list(range(n))]
    for _ in range(r.randint(0, 2)):
        groups.append(sorted(r.sample(range(n), r.randint(2, n))))
    ann = r.random() < 0.6
    anyp = r.choice([0, 0, 0.3, 0.6])
    asyncp = r.choice([0, 0.2, 0.5])

    def step(rank):
        k = r.choice(["collective", "collective", "send", "recv", "send", "recv", "compute", "wait"])
        if k == "compute":
            return Step(k)
        if k == "wait":
            return Step(k, r.randrange(5))
        gs = [g for g, m in enumerate(groups) if rank in m]
        g = r.choice(gs)
        if k == "collective":
            return Step(k, g, stays=r.random() < asyncp)
        peer = r.choice([m for m in groups[g] if m != rank])
        tag = r.randrange(2)
        if k == "recv" and r.random() < anyp:
            peer = None
        if not ann and k == "recv":
            tag = 1 if peer is None else 0
        return Step(k, g, peer, tag, r.random() < asyncp)

    L = r.choice([2, 4, 8])

    def thr(rank):
        return [[step(rank) for _ in range(r.randint(1, 2))]] if r.random() < 0.1 else []

    progs = [[[step(k) for _ in range(r.randint(0, L))], *thr(k)] for k in range(n)]
    play = Play(
        groups,
        progs,
        [r.choice(["finished", "failed", "idle", "dead", "interrupted"]) for _ in range(n)],
        announced=ann,
    )
    hist = [[play.report(k) for k in range(n)]]
    while c := play.choices():
        play.choose(r.choice(c))
        hist.append([play.report(k) for k in range(n)])
    hop = 0
    torn = anyp == 0
    for _ in range(6):
        std = {}
        mv = {}
        for k in range(n):
            a = r.randrange(len(hist))
            rep = hist[a][k]
            s = rep.standing
            mv[k] = rep.moves
            if torn and s.state == "running":
                b = r.randrange(a, len(hist))
                c = r.randrange(b, len(hist))
                d = hist[c][k].standing.doing
                s = Standing(
                    k,
                    s.state,
                    s.note,
                    Doing(d.issued, d.sent, d.received, s.doing.waits, s.doing.line, hist[b][k].standing.doing.threads),
                )
            std[k] = s
        v = judge(std)
        for k in v.stuck:
            hop += 1
            assert mv[k] == play.moves[k], (seed, "false", k, v.text)
    v = judge({k: x.standing for k, x in enumerate(hist[-1])})
    truth = play.stuck()
    assert set(v.stuck) <= set(truth), (seed, v, truth)
    exact = not play.threads() and not play.unclear()
    if exact:
        assert v.stuck == truth, (seed, v.stuck, truth, v.text)
    return hop, len(truth), exact, v.text


if __name__ == "__main__":
    H = T = E = 0
    ex = []
    for s in range(int(sys.argv[1]), int(sys.argv[2])):
        h, t, e, x = run(s)
        H += h
        T += t
        E += bool(t and e)
        ex.append(x)
    print(H, T, E)
    for x in sorted(set(ex), key=len)[:: max(1, len(set(ex)) // int(sys.argv[3]))]:
        print("-", x)
