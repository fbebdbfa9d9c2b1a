"""The slow oracle: the same rules step by step on plain objects, with SimPy's clock and no code of the kernels.

Each decode step is an event of its own and times are exact fractions; blocks are counted token by token. What happens
at one instant is put in the order that the event loop promises: outages, arrivals, handoffs by request, workers.
"""

from __future__ import annotations

from fractions import Fraction

from tests.scenarios.simulation.sim_oracle_blocks import Blocks, Req, Worker


class Oracle(Blocks):
    def simulate(self) -> Oracle:
        for r in self.requests:
            if self.never(r):
                r.state = "refused"
        for number, (time, up, w) in enumerate(
            zip(self.c.outage_time, self.c.outage_up, self.c.outage_worker, strict=True)
        ):
            self.at(int(time), 0, number, lambda w=int(w), up=bool(up): self.outage(w, up))
        for r, time in zip(self.requests, self.c.arrival, strict=True):
            self.at(int(time), 1, r.id, lambda r=r: self.come(r))
        self.env.run()
        return self

    # Routing.
    def pick(self, r: Req, source: Worker | None) -> Worker | None:
        pool = [self.workers[int(w)] for w in (self.c.prefill_pool if source is None else self.c.decode_pool)]
        policy = int(self.c.route_prefill if source is None else self.c.route_decode)
        able = [
            w
            for w in pool
            if w.up and self.size(w, r.prompt if w.role == 1 else r.prompt + r.out - 1) <= self.c.blocks[w.id]
        ]
        if not able:
            return None
        if policy == 0:
            name = "prefill" if source is None else "decode"
            order = [pool[(self.turn[name] + i) % len(pool)] for i in range(len(pool))]
            chosen = next(w for w in order if w in able)
            self.turn[name] = (pool.index(chosen) + 1) % len(pool)
            return chosen

        def load(w: Worker) -> int:
            if w.role & 2:
                return w.nreq
            return w.tokens - (self.matched(w, r) * int(self.c.hash_tokens) if policy == 3 else 0)

        if policy == 2 and source is not None:
            near = [w for w in able if self.c.domain[w.id] == self.c.domain[source.id]]
            best = min(near, key=lambda w: (load(w), w.id), default=None)
            if best is not None and load(best) < self.c.max_seqs[best.id]:
                return best
        return min(able, key=lambda w: (load(w), w.id))

    # The life of a request.
    def come(self, r: Req) -> None:
        self.todo -= 1
        if r.state != "refused":
            self.open += 1
            self.arrive(r)

    def arrive(self, r: Req) -> None:
        r.state = "waiting"
        w = self.pick(r, None)
        if w is None:
            r.pw = -1
            self.no_prefill.append(r)
            return
        r.pw = w.id
        if w.role == 3:
            r.dw = w.id
        w.tokens += r.prompt
        w.nreq += 1
        w.new.append(r)
        if not w.busy and not self.placing:
            self.schedule(w, Fraction(self.now))

    def seek_decode(self, r: Req) -> None:
        w = self.pick(r, self.workers[r.pw])
        if w is None:
            r.dw = -1
            if not r.early:
                r.state = "no decode"
                self.no_decode.append(r)
            r.early = ""
            return
        r.dw = w.id
        if not r.early:
            r.state = "reserving"
        w.nreq += 1
        w.new.append(r)
        self.reserve(w)

    def reserve(self, w: Worker) -> None:
        while w.new and not w.returning and w.up:
            r = w.new[0]
            full = self.c.pull and len(w.run) + w.inflight + len(w.arrived) >= self.c.max_seqs[w.id]
            if full or self.room(w) < self.size(w, r.prompt):
                return
            w.new.pop(0)
            self.use(w, self.size(w, r.prompt))
            r.far_blocks = self.size(w, r.prompt)
            w.inflight += 1
            if r.early:
                r.early = "moving"
            else:
                r.state = "moving"
            self.move(r)

    # Handoffs.
    def legs(self, r: Req) -> list[int]:
        way = int(self.c.pair[r.pw, r.dw])
        return list(range(int(self.c.way_at[way]), int(self.c.way_at[way + 1])))

    def links(self, leg: int) -> list[tuple[int, int]]:
        span = range(int(self.c.link_at[leg]), int(self.c.link_at[leg + 1]))
        return [(int(self.c.leg_links[i]), int(self.c.leg_ratio[i])) for i in span]

    def alone(self, r: Req, leg: int) -> int:
        n = self.ceil(r.prompt) if self.c.by_blocks else r.prompt
        bends = list(zip(self.c.leg_bends[leg].tolist(), self.c.knots.tolist(), strict=True))
        moving = sum(int(self.c.leg_each[leg]) + sum(each for each, knot in bends if i < knot) for i in range(n))
        cut = zip(self.c.leg_steps[leg].tolist(), self.c.step_knot.tolist(), self.c.step_chunk.tolist(), strict=True)
        moving += sum(each * len(range(0, min(n, knot), chunk)) for each, knot, chunk in cut)
        return -(-(int(self.c.leg_fixed[leg]) + moving) // int(self.c.leg_q[leg]))

    def move(self, r: Req) -> None:
        r.token += 1
        r.spans = {}
        if self.c.share == 1:
            r.times["hs"] = self.now
            self.flow(r, self.legs(r)[0])
            return
        now = max(self.now, r.times["layer"]) if self.c.layers else self.now
        starts = []
        for leg in self.legs(r):
            begin = max([now, *(self.link_free[link] for link, _ in self.links(leg))])
            starts.append(begin)
            took = self.alone(r, leg)
            now = begin + took
            if self.c.layers:
                now = max(now, r.times["pend"] + max(1, -(-took // int(self.c.layers))))
            r.spans[leg - self.legs(r)[0]] = [begin, now]
            for link, _ in self.links(leg):
                self.link_free[link] = now
        r.times["hs"] = min([*starts, now])
        self.at(now, 2, r.id, lambda r=r, token=r.token: self.moved(r, token))

    def flow(self, r: Req, leg: int) -> None:
        r.leg, r.rem, r.since, r.slow = leg, self.alone(r, leg), self.now, 0
        r.spans[leg - self.legs(r)[0]] = [self.now, -1]
        self.flows.append(r)
        self.share()

    def share(self) -> None:
        for r in self.flows:
            mine = self.links(r.leg)
            slow = 1024
            for link, ratio in mine:
                users = sum(any(link == other for other, _ in self.links(f.leg)) for f in self.flows)
                slow = max(slow, users * ratio)
            if slow == r.slow:
                continue
            if r.slow:
                passed = self.now - r.since
                r.rem = max(0, r.rem - (passed // r.slow * 1024 + passed % r.slow * 1024 // r.slow))
            r.slow, r.since = slow, self.now
            end = self.now + r.rem // 1024 * slow + -(-(r.rem % 1024 * slow) // 1024)
            r.token += 1
            self.at(end, 2, r.id, lambda r=r, token=r.token: self.moved(r, token))

    def moved(self, r: Req, token: int) -> None:
        if token != r.token:
            return
        if self.c.share == 1:
            self.flows.remove(r)
            r.spans[r.leg - self.legs(r)[0]][1] = self.now
            if r.leg != self.legs(r)[-1]:
                self.flow(r, r.leg + 1)
                return
            self.share()
        r.token += 1
        p, w = self.workers[r.pw], self.workers[r.dw]
        self.release(p, r)
        p.nreq -= 1
        w.inflight -= 1
        r.state, r.kv, r.last = "ready", r.prompt, self.now
        r.times |= {"he": self.now, "first": self.now}
        w.arrived.append(r)
        for one in (p, w):
            if not one.busy:
                self.schedule(one, Fraction(self.now))

    # Steps.
    def oust(self, w: Worker) -> Req:
        r = w.run.pop()
        self.release(w, r)
        r.state = "ousted"
        r.ousted += 1
        w.returning.insert(0, r)
        return r

    def grow(self, w: Worker) -> int:
        ousted = 0
        for r in list(w.run):
            if r not in w.run or r.state != "decoding":
                continue
            more = self.size(w, r.kv + 1) - r.far_blocks - r.pins * self.shared()
            if more <= 0:
                continue
            while r in w.run and self.room(w) < more:
                self.oust(w)
                ousted += 1
            if r in w.run:
                self.use(w, more)
                r.far_blocks += more
        return ousted

    def admit(self, w: Worker, queue: list[Req]) -> None:
        left = int(self.c.budget[w.id]) - sum(1 if r.state == "decoding" else r.target - r.done for r in w.run)
        while queue and len(w.run) < self.c.max_seqs[w.id] and left > 0:
            r = queue[0]
            target, found = r.prompt + r.gen, self.matched(w, r)
            need = self.size(w, target) - found * (self.each() if found else 0)
            idle = sum(w.users[h] == 0 for h in r.hashes[:found])
            if self.room(w) - (idle * self.each() if idle else 0) < need:
                return
            queue.pop(0)
            for h in r.hashes[:found]:
                self.pin(w, h)
            r.pins = found
            self.use(w, need)
            self.hold(w, r, need)
            r.done, r.target = found * int(self.c.hash_tokens), target
            if w.role == 1:
                w.tokens -= r.done
            r.times.setdefault("adm", self.now)
            left -= r.target - r.done
            r.state = "prefilling" if w.role == 1 else "recomputing"
            w.run.append(r)

    def schedule(self, w: Worker, exact: Fraction) -> None:
        ousted = 0
        if w.role & 2:
            while w.arrived and len(w.run) < self.c.max_seqs[w.id]:
                r = w.arrived.pop(0)
                r.state, r.chunk = "decoding", 1
                w.run.append(r)
            ousted = self.grow(w)
            if not ousted or not w.run:
                self.admit(w, w.returning)
            if w.role == 2:
                self.reserve(w)
        if w.role & 1 and not w.returning and not ousted:
            self.admit(w, w.new)
        w.busy = bool(w.run)
        if w.run:
            self.step(w, exact)

    def step(self, w: Worker, exact: Fraction) -> None:
        decoding = [r for r in w.run if r.state == "decoding"]
        left = int(self.c.budget[w.id]) - len(decoding)
        tokens = sequences = 0
        logits, ids = len(decoding), sum(r.chunk for r in decoding)
        for r in w.run:
            if r.state != "decoding":
                r.chunk = max(0, min(r.target - r.done, left))
                left -= r.chunk
                sequences += r.chunk > 0
                tokens += r.chunk
                logits += r.done + r.chunk == r.target
        n = tokens + len(decoding)
        took = 0
        for stage in self.c.cost[w.id].tolist():
            f, wc, w0, wr, hc, h0, acp, acd, ab, up0, up1, dn0, dn1, each, es, en, ek, sb, window = stage
            pairs, read, seen = self.attention(w, int(self.c.windows[window - 1]) if window else 10**9)
            took += f + each * n + max(wc * n, w0 + wr * n + es * min(en, ek * n))
            took += sb * (sequences + len(decoding))
            took += max(acp * pairs + acd * seen, ab * (read + n + seen))
            took += max(hc * logits, h0) + dn0 + dn1 * logits if logits else 0
            took += up0 + up1 * (tokens + ids) if tokens + ids else 0
        w.began, w.exact = self.now, exact + Fraction(took, int(self.c.q[w.id]))
        w.token += 1
        end = int(w.exact)
        self.at(end, 3, w.id, lambda w=w, token=w.token: self.ended(w, token))
        if self.c.layers and w.role == 1:
            for r in w.run:
                if r.done + r.chunk == r.target and r.out > 1:
                    r.early = "seeking"
                    layers = int(self.c.layers)
                    r.times |= {"pend": end, "layer": self.now + -(-(end - self.now) // layers)}
                    self.seek_decode(r)

    def attention(self, w: Worker, window: int) -> tuple[int, int, int]:
        """(pairs and cached positions of chunks, positions of decoding tokens) through a window, one by one."""
        pairs = read = seen = 0
        for r in w.run:
            if r.state == "decoding":
                seen += len(range(max(0, r.kv + 1 - window), r.kv + 1))
                continue
            looked: set[int] = set()
            for token in range(r.done, r.done + r.chunk):
                near = range(max(0, token + 1 - window), token + 1)
                pairs += len(near)
                looked |= set(near)
            read += len(looked)
        return pairs, read, seen

    def ended(self, w: Worker, token: int) -> None:
        if token != w.token:
            return
        w.busy_time += self.now - w.began
        w.steps += 1
        for r in list(w.run):
            if r.state == "decoding":
                self.emit(w, r)
            else:
                self.chunk_done(w, r)
            r.chunk = 0
            if r.state not in ("decoding", "prefilling", "recomputing"):
                w.run.remove(r)
        w.busy = False
        self.schedule(w, w.exact)

    def emit(self, w: Worker, r: Req) -> None:
        r.kv += 1
        r.gen += 1
        self.gaps.append(self.now - r.last)
        r.last = self.now
        if r.gen == r.out:
            self.finish(w, r)

    def finish(self, w: Worker, r: Req) -> None:
        self.release(w, r)
        r.state = "finished"
        r.times["done"] = self.now
        w.nreq -= 1
        self.open -= 1

    def chunk_done(self, w: Worker, r: Req) -> None:
        r.done += r.chunk
        if w.role == 1:
            w.tokens -= r.chunk
        if r.done < r.target:
            return
        if self.c.hash_tokens and w.role & 1:
            for h in r.hashes[r.pins : r.prompt // int(self.c.hash_tokens)]:
                self.hold(w, r, -self.each())
                if h in w.users:
                    self.pin(w, h)
                    w.free += self.each()
                else:
                    w.users[h] = 1
                r.pins += 1
        if r.gen:
            self.gaps.append(self.now - r.last)
        r.gen += 1
        r.kv = r.target
        if r.gen == 1:
            r.times["pend"] = self.now
        if w.role != 1 or r.out == 1:
            r.last = self.now
            if r.gen == 1:
                r.times["first"] = self.now
            r.state = "decoding"
            if r.gen == r.out:
                self.finish(w, r)
        elif r.early:
            r.state = "reserving" if r.early == "seeking" else "moving"
            r.early = ""
        else:
            self.seek_decode(r)

    # Outages.
    def outage(self, number: int, up: bool) -> None:
        if self.open == 0 and self.todo == 0:
            return
        w = self.workers[number]
        if up:
            w.up = True
        else:
            self.fail(w)
        self.placing = True
        for r in [self.no_prefill.pop(0) for _ in range(len(self.no_prefill))]:
            self.arrive(r)
        for r in [self.no_decode.pop(0) for _ in range(len(self.no_decode))]:
            self.seek_decode(r)
        self.placing = False
        woken = [one for one in self.workers if one.up and not one.busy]
        for one in self.workers:
            if one.up and one.busy and one.role == 2:
                self.reserve(one)
        for one in woken:
            self.schedule(one, Fraction(self.now))

    def fail(self, w: Worker) -> None:
        w.up = False
        w.token += 1
        for r in self.requests:
            before = r.state in ("reserving", "moving") or (r.state == "prefilling" and r.early != "")
            here = r.pw == w.id and r.state in ("waiting", "prefilling", "reserving", "moving", "no decode")
            there = r.dw == w.id and r.state in ("ready", "decoding", "ousted", "recomputing")
            if before and (here or r.dw == w.id):
                prefilling = r.state == "prefilling"
                self.leave(r, w)
                if not here and not prefilling:
                    self.no_decode.append(r)
            if r.state == "no decode" and here and r in self.no_decode:
                self.no_decode.remove(r)
            if here or there:
                if "he" in r.times:
                    self.lost.append([r.id, r.pw, r.dw, *[r.spans[leg] for leg in sorted(r.spans)]])
                r.done = r.gen = r.kv = r.blocks = r.far_blocks = r.pins = 0
                r.dw, r.last, r.early, r.times = -1, -1, "", {}
                r.tries += 1
                self.no_prefill.append(r)
        w.run, w.new, w.arrived, w.returning = [], [], [], []
        w.inflight = w.tokens = w.nreq = 0
        w.free, w.users, w.idle, w.busy = int(self.c.blocks[w.id]), {}, [], False
        self.share()

    def leave(self, r: Req, failed: Worker) -> None:
        w = self.workers[r.dw]
        moving = r.state == "moving" or r.early == "moving"
        if moving:
            r.token += 1
            r.redone += 1
            if r in self.flows:
                self.flows.remove(r)
        if w is not failed:
            if moving:
                self.release(w, r)
                w.inflight -= 1
            else:
                w.new.remove(r)
            w.nreq -= 1
        r.far_blocks, r.early, r.dw = 0, "", -1
