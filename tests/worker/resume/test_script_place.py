"""Loops that could fool a resume: each is brought back exactly, or refused beforehand.

Each script wants a place at each of its steps in turn, and is brought back to it.
"""

from pathlib import Path

import pytest

from gpujob_worker.checkpoint.tree import encode_tree
from tests.harness.resumed_loops import ResumedLoops

LOADER = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader(torch.arange(7), batch_size=2, shuffle=True)
"""
LIBRARY = """
import functools

def both(function):
    function(0)
    function(1)

def each(function):
    return [function(k) for k in range(2)]

def gen_each(function):
    return sum(function(k) or 0 for k in range(2))

def deco(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)
    return inner

def prefetch(loader):
    batches = iter(loader)
    ahead = next(batches)
    for batch in batches:
        yield ahead
        ahead = batch
    yield ahead

class Wrapped:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        return iter(self.loader)
"""
EXACT = {
    "two statements in a line": """
def run(k):
    for i in range(3):
        if k: step((k, i))
run(0); run(1)
""",
    "range": """
for i in range(5):
    step(i)
""",
    "nested loops": """
for epoch in range(3):
    for i in range(4):
        step((epoch, i))
    step(epoch)
""",
    "a loader": """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(10), batch_size=3, shuffle=True)
for epoch in range(2):
    for batch in loader:
        step(batch)
""",
    "a numbered loader": """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(10), batch_size=3, shuffle=True)
for epoch in range(2):
    for i, batch in enumerate(loader):
        step((i, batch))
""",
    "a block that ends in the first line of an endless loop": """
import contextlib
n = 0
out = []
@contextlib.contextmanager
def block():
    yield
    out.append(n)
while True:
    with block():
        step((n, list(out)))
        n += 1
    if n > 4:
        break
""",
    "a first statement of several lines": """
n = list(range(9))
def more(x):
    step(x)
while True:
    more(
        n.pop(0),
    )
    if not n:
        break
""",
    "a while with continue": """
n = 0
while n < 5:
    n += 1
    if n == 3:
        continue
    step(n)
""",
    "a list shuffled each time": """
import random
order = list(range(4))
for epoch in range(3):
    random.shuffle(order)
    for i in order:
        step((epoch, i))
""",
    "numbered items shuffled each time": """
import random
order = [[1],[2],[3],[4]]
for e in range(3):
    random.shuffle(order)
    for k, x in enumerate(order):
        step((k, x))
""",
    "an array": """
import numpy as np
order = np.arange(4)
for e in range(3):
    for i, x in enumerate(order):
        step(int(x))
""",
    "functions": """
def train(epoch, n):
    for i in range(n):
        step((epoch, i))
def main():
    for epoch in range(3):
        train(epoch, epoch + 2)
main()
""",
    "recursion": """
def f(d):
    for i in range(2):
        if d: f(d-1)
        else: step(i)
f(2)
""",
    "a library that calls twice": """
import somelib
def run(k):
    for i in range(3):
        if k: step((k, i))
somelib.both(run)
""",
    "a decorator of a library": """
import somelib
@somelib.deco
def run(k):
    for i in range(3):
        step((k, i))
run(3)
""",
    "a partial application": """
import functools
def run(k):
    for i in range(3):
        step((k, i))
functools.partial(run, 3)()
""",
    "a call of several lines": """
def f(a, b):
    for i in range(3):
        step((a, b, i))
for e in range(2):
    f(
        e,
        b=1,
    )
""",
    "with, try and match": """
import contextlib
for e in range(3):
    with contextlib.nullcontext():
        try:
            match e:
                case _:
                    for i in range(3):
                        step((e, i))
        finally:
            pass
""",
    "a star target": """
for a, *b in enumerate([(1, 2), (3, 4)]):
    step((a, b))
""",
    "reversed": """
items = [[5],[6],[7],[8]]
for e in range(3):
    for x in reversed(items):
        step(x)
""",
    "the first of a list": """
import itertools
items = [[5],[6],[7],[8]]
for e in range(3):
    for x in itertools.islice(items, 3):
        step(x)
""",
    "a dict without its first key": """
d = {'x':0,'a':1,'b':2,'c':3}
d.pop('x')
for e in range(3):
    for k, v in d.items():
        step((k, v))
""",
    "a dict with other values": """
d = {'a':1,'b':2,'c':3}
for e in range(3):
    for k, v in d.items():
        step((k, v))
        d[k] = v + 1
""",
    "a list of a class": """
class T:
    def __init__(self):
        self.items=[[1],[2],[3]]
        self.n=3
    def fit(self):
        for e in range(self.n):
            for x in self.items:
                step((e, x))
            self.n += 0
T().fit()
""",
    "zip of unequal loaders": """
l2 = DataLoader(torch.arange(12), batch_size=2, shuffle=True)
for e in range(2):
    for a, b in zip(loader, l2):
        step((a, b))
""",
    "zip with a range": """
for e in range(2):
    for a, b in zip(range(2), loader):
        step((a, b))
""",
    "zip with a list shuffled each time": """
import random
order = [1,2,3,4]
for e in range(2):
    random.shuffle(order)
    for a, b in zip(order, loader):
        step((a, b))
""",
    "a while with side effects": """
n = [0]
def more():
    n[0] += 1
    step(n[0])
    return n[0] < 7
while more() and more():
    pass
""",
    "an endless loop around a loop": """
n = 0
while True:
    for i in range(2):
        step((n, i))
    n += 1
    if n > 3: break
""",
    "an endless loop that begins with try": """
n = 0
while True:
    try:
        step(n)
    finally:
        n += 1
    if n > 3: break
""",
    "an endless loop with continue": """
n = 0
while True:
    n += 1
    step(n)
    if n < 4: continue
    break
""",
    "an endless loop that begins with pass": """
n = 0
while True:
    pass
    n += 1
    step(n)
    if n > 4: break
""",
    "a comprehension in the head": """
for i in range(len([x for x in range(3)])):
    step(i)
""",
    "heads of several lines": """
for e in range(
    2,
):
    for i, x in enumerate(
        range(
            3
        )
    ):
        step((e, i))
""",
    "a long body": """
for e in range(2):
    for i in range(3):
        step((e, i))
        x0 = 0
        x1 = 1
        x2 = 2
        x3 = 3
        x4 = 4
        x5 = 5
        x6 = 6
        x7 = 7
        x8 = 8
        x9 = 9
        x10 = 10
        x11 = 11
        x12 = 12
        x13 = 13
        x14 = 14
        x15 = 15
        x16 = 16
        x17 = 17
        x18 = 18
        x19 = 19
        x20 = 20
        x21 = 21
        x22 = 22
        x23 = 23
        x24 = 24
        x25 = 25
        x26 = 26
        x27 = 27
        x28 = 28
        x29 = 29
        x30 = 30
        x31 = 31
        x32 = 32
        x33 = 33
        x34 = 34
        x35 = 35
        x36 = 36
        x37 = 37
        x38 = 38
        x39 = 39
        x40 = 40
        x41 = 41
        x42 = 42
        x43 = 43
        x44 = 44
        x45 = 45
        x46 = 46
        x47 = 47
        x48 = 48
        x49 = 49
        x50 = 50
        x51 = 51
        x52 = 52
        x53 = 53
        x54 = 54
        x55 = 55
        x56 = 56
        x57 = 57
        x58 = 58
        x59 = 59
        x60 = 60
        x61 = 61
        x62 = 62
        x63 = 63
        x64 = 64
        x65 = 65
        x66 = 66
        x67 = 67
        x68 = 68
        x69 = 69
        x70 = 70
        x71 = 71
        x72 = 72
        x73 = 73
        x74 = 74
        x75 = 75
        x76 = 76
        x77 = 77
        x78 = 78
        x79 = 79
        x80 = 80
        x81 = 81
        x82 = 82
        x83 = 83
        x84 = 84
        x85 = 85
        x86 = 86
        x87 = 87
        x88 = 88
        x89 = 89
        x90 = 90
        x91 = 91
        x92 = 92
        x93 = 93
        x94 = 94
        x95 = 95
        x96 = 96
        x97 = 97
        x98 = 98
        x99 = 99
        x100 = 100
        x101 = 101
        x102 = 102
        x103 = 103
        x104 = 104
        x105 = 105
        x106 = 106
        x107 = 107
        x108 = 108
        x109 = 109
        x110 = 110
        x111 = 111
        x112 = 112
        x113 = 113
        x114 = 114
        x115 = 115
        x116 = 116
        x117 = 117
        x118 = 118
        x119 = 119
        x120 = 120
        x121 = 121
        x122 = 122
        x123 = 123
        x124 = 124
        x125 = 125
        x126 = 126
        x127 = 127
        x128 = 128
        x129 = 129
        x130 = 130
        x131 = 131
        x132 = 132
        x133 = 133
        x134 = 134
        x135 = 135
        x136 = 136
        x137 = 137
        x138 = 138
        x139 = 139
        x140 = 140
        x141 = 141
        x142 = 142
        x143 = 143
        x144 = 144
        x145 = 145
        x146 = 146
        x147 = 147
        x148 = 148
        x149 = 149
        x150 = 150
        x151 = 151
        x152 = 152
        x153 = 153
        x154 = 154
        x155 = 155
        x156 = 156
        x157 = 157
        x158 = 158
        x159 = 159
        x160 = 160
        x161 = 161
        x162 = 162
        x163 = 163
        x164 = 164
        x165 = 165
        x166 = 166
        x167 = 167
        x168 = 168
        x169 = 169
        x170 = 170
        x171 = 171
        x172 = 172
        x173 = 173
        x174 = 174
        x175 = 175
        x176 = 176
        x177 = 177
        x178 = 178
        x179 = 179
        x180 = 180
        x181 = 181
        x182 = 182
        x183 = 183
        x184 = 184
        x185 = 185
        x186 = 186
        x187 = 187
        x188 = 188
        x189 = 189
        x190 = 190
        x191 = 191
        x192 = 192
        x193 = 193
        x194 = 194
        x195 = 195
        x196 = 196
        x197 = 197
        x198 = 198
        x199 = 199
        x200 = 200
        x201 = 201
        x202 = 202
        x203 = 203
        x204 = 204
        x205 = 205
        x206 = 206
        x207 = 207
        x208 = 208
        x209 = 209
        x210 = 210
        x211 = 211
        x212 = 212
        x213 = 213
        x214 = 214
        x215 = 215
        x216 = 216
        x217 = 217
        x218 = 218
        x219 = 219
        x220 = 220
        x221 = 221
        x222 = 222
        x223 = 223
        x224 = 224
        x225 = 225
        x226 = 226
        x227 = 227
        x228 = 228
        x229 = 229
        x230 = 230
        x231 = 231
        x232 = 232
        x233 = 233
        x234 = 234
        x235 = 235
        x236 = 236
        x237 = 237
        x238 = 238
        x239 = 239
        x240 = 240
        x241 = 241
        x242 = 242
        x243 = 243
        x244 = 244
        x245 = 245
        x246 = 246
        x247 = 247
        x248 = 248
        x249 = 249
        x250 = 250
        x251 = 251
        x252 = 252
        x253 = 253
        x254 = 254
        x255 = 255
        x256 = 256
        x257 = 257
        x258 = 258
        x259 = 259
        x260 = 260
        x261 = 261
        x262 = 262
        x263 = 263
        x264 = 264
        x265 = 265
        x266 = 266
        x267 = 267
        x268 = 268
        x269 = 269
        x270 = 270
        x271 = 271
        x272 = 272
        x273 = 273
        x274 = 274
        x275 = 275
        x276 = 276
        x277 = 277
        x278 = 278
        x279 = 279
        x280 = 280
        x281 = 281
        x282 = 282
        x283 = 283
        x284 = 284
        x285 = 285
        x286 = 286
        x287 = 287
        x288 = 288
        x289 = 289
        x290 = 290
        x291 = 291
        x292 = 292
        x293 = 293
        x294 = 294
        x295 = 295
        x296 = 296
        x297 = 297
        x298 = 298
        x299 = 299
""",
    "numbered literals": """
a = [1]
b = [2]
for e in range(2):
    for i, x in enumerate((a, b)):
        step(x)
""",
    "numbers of a literal": """
for lr in [0.1, 0.01]:
    for i in range(3):
        step((lr, i))
""",
    "zeros in a variable": """
xs = [0.0, 1.0, -0.0, 2.0]
for x in xs:
    step(x)
""",
    "a number of steps": """
for e in range(2):
    n = len(loader) // 2
    for i in range(n):
        step((e, i))
""",
    "a bound of the loop around": """
for e in range(3):
    n = 2 + e
    for i in range(n, n + 3):
        step((e, i))
""",
    "a loader of an attribute": """
class D:
    pass
d = D()
d.l = loader
for e in range(2):
    for b in d.l:
        step(b)
""",
    "a loader of a dict": """
d = {'t': loader}
for e in range(2):
    for b in d['t']:
        step(b)
""",
    "a loader that a function makes": """
def make():
    return DataLoader(torch.arange(5), batch_size=2, shuffle=True)
for e in range(2):
    for b in make():
        step(b)
""",
    "a loader that is left": """
for e in range(3):
    for i, b in enumerate(loader):
        step((i, b))
        if i == 1: break
""",
    "bars": """
from tqdm import tqdm
for e in tqdm(range(2), disable=True):
    for i, b in enumerate(tqdm(loader, desc=f'{e}', disable=True)):
        step((i, b))
""",
    "a bar in a variable": """
from tqdm import tqdm
for e in range(2):
    bar = tqdm(loader, disable=True)
    for b in bar:
        step(b)
""",
    "map": """
for i, x in enumerate(map(str, [3, 4, 5])):
    step((i, x))
""",
    "a sorted set": """
names = {'b', 'a', 'c'}
for e in range(2):
    for i, x in enumerate(sorted(names)):
        step((i, x))
""",
    "an exception's name is another": """
for i in range(4):
    step(i)
    try:
        raise ValueError(3)
    except ValueError as error:
        pass
""",
}
# Nothing is saved of these: they are known to be lost before the first interruption.
REFUSED = {
    "a dict in another order": """
d = {'a': 1, 'b': 2, 'c': 3}
for epoch in range(3):
    d['a'] = d.pop('a')
    for k, v in d.items():
        step((k, v))
""",
    "zeros with signs": """
for x in [0.0, 1.0, -0.0, 2.0]:
    step(x)
""",
    "removes its items": """
items = [0, 1, 2, 3, 4, 5]
for x in items:
    step(x)
    items.remove(x)
""",
    "pops its items": """
items = [[1], [2], [3], [4], [5]]
for x in items:
    step(x)
    items.pop(0)
""",
    "removes by another name": """
xs = [1,2,3,4,5]
ys = xs
for x in xs:
    step(x)
    ys.remove(x)
""",
    "removes in a function": """
xs = [1,2,3,4,5]
def h(x):
    xs.remove(x)
for x in xs:
    step(x)
    h(x)
""",
    "appends to its list": """
xs = [[1],[2],[3]]
for x in xs:
    step(x)
    if len(xs) < 6: xs.append([len(xs)])
""",
    "binds its list anew": """
xs = [1,2,3]
for x in xs:
    step(x)
    xs = [9] + xs
""",
    "an iterable class": """
class Stream:
    def __iter__(self):
        self.n = 0
        while self.n < 9:
            yield self.n
            self.n += seen
seen = 1
for i, x in enumerate(Stream()):
    seen = 2
    step((i, x))
""",
    "a decorated generator": """
import torch
@torch.no_grad()
def stream():
    n = 0
    while n < 9:
        yield n
        n += seen
seen = 1
for i, x in enumerate(stream()):
    seen = 2
    step((i, x))
""",
    "a partial generator": """
import functools
def stream(k):
    n = 0
    while n < 9:
        yield n
        n += seen
seen = 1
for i, x in enumerate(functools.partial(stream, 1)()):
    seen = 2
    step((i, x))
""",
    "a generator in map": """
import random
def stream():
    n = 0
    while n < 9:
        yield n
        n += seen
seen = 1
for i, x in enumerate(map(int, stream())):
    seen = 2
    step((i, x))
""",
    "a set": """
for x in {'a', 'b', 'c'}:
    step(x)
""",
    "a numbered set": """
s = {'a', 'b', 'c'}
for i, x in enumerate(s):
    step(x)
""",
    "a list of a set": """
for epoch in range(2):
    for x in list({'a', 'b', 'c'}):
        step(x)
""",
    "other batches": """
import itertools, torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(10), batch_size=1)
for x in itertools.islice(loader, 3, None):
    step(x)
""",
    "all batches at once": """
for b in list(loader):
    step(b)
""",
    "zip with a generator": """
import torch, random
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(4), batch_size=1)
def noise():
    n = 0
    while True:
        yield n
        n += 1
stream = noise()
for epoch in range(2):
    for x in zip(loader, stream):
        step(x)
""",
    "zip with an iterator": """
it = iter(range(20))
for epoch in range(3):
    for i, x in zip(range(3), it):
        step(x)
""",
    "a library that reads ahead": """
import somelib
for b in somelib.prefetch(loader):
    step(b)
""",
    "an object that reads a loader": """
import somelib
w = somelib.Wrapped(loader)
for b in w:
    step(b)
""",
    "an iterator of a loader": """
for e in range(2):
    it = iter(loader)
    for b in it:
        step(b)
""",
    "a first number that changes": """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(4), batch_size=1)
n = 0
for epoch in range(3):
    for i, x in enumerate(loader, n):
        step((i, x))
        n += 1
""",
    "a first number that is its own": """
g = 0
for e in range(2):
    for g, b in enumerate(loader, g + 1):
        step((g, b))
""",
    "a bound that shrinks": """
n = 5
for epoch in range(2):
    for i in range(n):
        n -= 1
        step(i)
""",
    "a bound that grows": """
q = [0]
for epoch in range(2):
    for i in range(len(q) + 2):
        q.append(i)
        step(i)
""",
    "a bound at random": """
import random
for epoch in range(6):
    n = random.randint(2, 5)
    for x in range(n):
        step(x)
""",
    "an order at random": """
import random
for epoch in range(3):
    for x in sorted(range(5), key=lambda _: random.random()):
        step(x)
""",
    "a tuple at random": """
import random
for epoch in range(3):
    order = tuple(random.sample(range(5), 5))
    for x in order:
        step(x)
""",
    "a sorted list shuffled each time": """
import random
order = [5,6,7,8]
for e in range(3):
    random.shuffle(order)
    for x in sorted(order):
        step(x)
""",
    "a copy of a list shuffled each time": """
import random
order = [5,6,7,8]
for e in range(3):
    random.shuffle(order)
    for x in list(order):
        step(x)
""",
    "a function named as one of Python": """
import random
def enumerate(xs):
    k = random.sample(range(9), len(xs))
    return list(zip(k, xs))
for e in range(3):
    for i, x in enumerate([1,2,3]):
        step((i, x))
""",
    "a function named track": """
import random
def track(items):
    kept = [x for x in items if random.random() < .5]
    return kept
for epoch in range(6):
    for x in track(range(5)):
        step(x)
""",
    "an iterator that calls": """
q = [1,2,3,4,0]
for i, x in enumerate(iter(q.pop, 1)):
    step((i, x))
""",
    "map calls": """
def run(k):
    for i in range(3):
        if k: step((k, i))
list(map(run, [0, 1]))
""",
    "a star calls": """
def run(k):
    for i in range(3):
        if k: step((k, i))
r = [*map(run, (0, 1))]
""",
    "an unpacking calls": """
def run(k):
    for i in range(3):
        if k: step((k, i))
a, b = map(run, (0, 1))
""",
    "a comprehension of a library calls": """
import somelib
def run(k):
    for i in range(3):
        if k: step((k, i))
somelib.each(run)
""",
    "a generator of a library calls": """
import somelib
def run(k):
    for i in range(3):
        if k: step((k, i))
somelib.gen_each(run)
""",
    "a loop in exec": """
def run(k):
    for i in range(3):
        step((k, i))
exec('for k in range(3): run(k)')
""",
    "a loop around the script": """
import runpy, pathlib
inner = pathlib.Path(__file__).with_name('inner.py')
inner.write_text('for i in range(3):\\n    step(i)\\n')
for k in range(3):
    runpy.run_path(str(inner), init_globals={'step': step}, run_name='__main__')
""",
    "a generator that list reads": """
def train():
    for i in range(5):
        step(i)
        yield i
losses = list(train())
step(losses)
""",
    "a condition of several lines": """
n = list(range(9))
def more(x):
    step(x)
    return x < 6
while more(
    n.pop(0)
):
    pass
""",
    "a body in the line of its head": """
for i in range(3): step(i)
""",
    "one name twice": """
for epoch in range(3):
    for i, i in enumerate([3, 0, 2]):
        step((epoch, i))
""",
    "a global of a function": """
def h():
    global i
    i = 7
for i in range(4):
    step(i)
    h()
""",
    "a walrus": """
for i in range(4):
    step(i)
    (i := i + 10)
""",
    "del": """
for i in range(4):
    step(i)
    del i
""",
    "an addition": """
for i in range(4):
    step(i)
    i += 5
""",
    "an exception's name": """
for i in range(4):
    step(i)
    try:
        raise ValueError(3)
    except ValueError as i:
        pass
""",
    "a match": """
for i in range(4):
    step(i)
    match (7 - i, 2):
        case (i, 2):
            pass
""",
    "a function's name": """
for i in range(4):
    step(i)
    def i(): pass
""",
    "an import's name": """
for i in range(4):
    step(i)
    import math as i
""",
    "items of a class": """
class Multi:
    def items(self):
        return [('a', 1), ('a', 2), ('b', 3), ('b', 4)]
for k, v in Multi().items():
    step((k, v))
m = Multi()
for k, v in m.items():
    step((k, v))
""",
    "sorted objects": """
items = [[3], [1], [2]]
for x in sorted(items):
    step(x)
""",
    "a later part of a list": """
import itertools
items = [[5],[6],[7],[8]]
for e in range(3):
    for x in itertools.islice(items, 1, None):
        step(x)
""",
}
# What these depend on is seen when they come back, at the latest.
NEVER_INEXACT = {
    "two calls in a call": """
def run(k):
    for i in range(3):
        if k: step((k, i))
    return k
found = (run(0), run(1))
""",
    "two calls in a line": """
def run(k):
    for i in range(3):
        if k: step((k, i))
run(0), run(1)
""",
    "a bound in an attribute": """
class T:
    def __init__(self):
        self.n=3
    def fit(self):
        for e in range(2):
            for x in range(self.n):
                step((e, x))
                self.n += 1
                if self.n > 12: break
T().fit()
""",
    "a bound that a method changes": """
class T:
    def __init__(self):
        self.n=3
    def grow(self):
        self.n += 1
    def fit(self):
        for e in range(3):
            for x in range(self.n):
                step((e, x))
                self.grow()
T().fit()
""",
    "a bound that is passed at random": """
import random
def f(n):
    for i in range(n):
        step(i)
for e in range(5):
    f(random.randint(2, 5))
""",
    "else": """
for e in range(2):
    for i in range(2):
        step((e, i))
    else:
        for j in range(3):
            step((e, 'else', j))
""",
    "a head of several lines after a step": """
for e in range(3):
    step('e')
    for i in range(
        3
    ):
        step((e, i))
""",
    "functions of one name": """
def outer():
    def f():
        for i in range(2):
            step(('a', i))
    return f
def outer2():
    def f():
        for i in range(2):
            step(('b', i))
    return f
outer()()
outer2()()
""",
    "two loops": """
for e in range(2):
    for i in range(2):
        step((e, 'a', i))
    for i in range(2):
        step((e, 'b', i))
""",
}


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResumedLoops:
    found = ResumedLoops(tmp_path, monkeypatch)
    found.write_library("somelib", LIBRARY)
    return found


@pytest.mark.parametrize("name", EXACT)
def test_it_comes_back_exactly(loops: ResumedLoops, name: str) -> None:
    if "tqdm" in EXACT[name]:
        pytest.importorskip("tqdm")
    loops.exact(LOADER + EXACT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_beforehand(loops: ResumedLoops, name: str) -> None:
    loops.refused(LOADER + REFUSED[name])


@pytest.mark.parametrize("name", NEVER_INEXACT)
def test_it_never_comes_back_to_something_else(loops: ResumedLoops, name: str) -> None:
    ways = loops.ways(NEVER_INEXACT[name])
    assert ways


def test_a_place_can_be_written(loops: ResumedLoops) -> None:
    loops.write(EXACT["functions"])
    saved = loops.interrupted(3)
    encode_tree(saved.place)
    assert [each["code"] for each in saved.place] == ["<module>", "main", "train"]
    kinds = [[loop["kind"] for loop in each["loops"]] for each in saved.place]
    assert kinds == [[], ["number"], ["number"]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a bound at random", "random.randint(2, 5) may be another value when"),
        ("a bound that shrinks", "n changes while the loop goes on"),
        ("a library that reads ahead", "somelib reads a loader for the loop in line"),
        ("map calls", "may call a function for each of some items"),
        ("a comprehension of a library calls", "calls it in a loop"),
        ("a condition of several lines", "has its condition in more than one line"),
        ("a walrus", "cannot be distinguished; a loop over enumerate(...) can be"),
        ("a loop around the script", "runs the script in a loop"),
    ],
)
def test_the_reason_names_what_to_change(loops: ResumedLoops, name: str, why: str) -> None:
    loops.refused(LOADER + REFUSED[name], why)
