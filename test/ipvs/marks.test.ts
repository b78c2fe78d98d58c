import assert from 'node:assert/strict';
import fc from 'fast-check';
import { MarkAllocator, verdictMarks } from '../../ipvs/marks.ts';

const OWNERS = Array.from({ length: 12 }, (_, index) => `default/s${index} cluster`);
/** Room for eight owners. */
const RANGE = { first: 0x1000, last: 0x1009 };
const VERDICTS = Object.values(verdictMarks(RANGE));

const owner = fc.constantFrom(...OWNERS);
const anyMark = fc.integer({ min: RANGE.first - 3, max: RANGE.last + 3 });
const known = fc.array(fc.tuple(owner, anyMark), { maxLength: 6 });
const foreign = fc.uniqueArray(anyMark, { maxLength: 4 });
const steps = fc.array(fc.record({ owner, op: fc.constantFrom('take', 'release') }), {
  maxLength: 60,
});

/** A model of the allocator: marks by owner, and released owners, the oldest first. */
class Model {
  readonly marks = new Map<string, number>();
  released: string[] = [];
  readonly free: Set<number>;

  constructor(records: readonly (readonly [string, number])[], others: readonly number[]) {
    this.free = new Set();
    for (let mark = RANGE.first; mark <= RANGE.last; mark++) {
      if (!VERDICTS.includes(mark) && !others.includes(mark)) this.free.add(mark);
    }
    for (const [name, mark] of records) {
      if (!this.free.has(mark) || this.marks.has(name)) continue;
      this.free.delete(mark);
      this.marks.set(name, mark);
      this.released.push(name);
    }
  }

  take(name: string, mark: number | undefined): void {
    this.released = this.released.filter((each) => each !== name);
    const had = this.marks.get(name);
    if (had !== undefined) assert.equal(mark, had, 'an owner keeps its mark');
    else if (this.free.size > 0) assert.ok(mark !== undefined && this.free.delete(mark));
    else {
      const oldest = this.released.shift();
      assert.equal(mark, oldest === undefined ? undefined : this.marks.get(oldest));
      if (oldest !== undefined) this.marks.delete(oldest);
    }
    if (mark !== undefined) this.marks.set(name, mark);
  }

  release(name: string): void {
    if (!this.marks.has(name)) return;
    this.released = [...this.released.filter((each) => each !== name), name];
  }
}

describe('marks: allocation', () => {
  it('allocates each mark once, keeps it after release, and reuses the oldest when none is free', () => {
    fc.assert(
      fc.property(known, foreign, steps, (records, others, each) => {
        const marks = new MarkAllocator(RANGE, records, others);
        const model = new Model(records, others);
        for (const { op, owner: name } of each) {
          if (op === 'take') model.take(name, marks.allocate(name));
          else {
            marks.release(name);
            model.release(name);
          }
          assert.equal(new Set(model.marks.values()).size, model.marks.size);
          assert.equal(marks.inUse, model.marks.size - model.released.length);
        }
        for (const mark of [...model.marks.values()]) assert.ok(marks.isOwn(mark));
      }),
      { seed: 42, numRuns: 1000 },
    );
  });

  it('allocates the same marks on every node while there is room', () => {
    const wide = { first: 0x1000, last: 0x3fff };
    const [here, there] = [new MarkAllocator(wide, [], []), new MarkAllocator(wide, [], [])];
    const some = OWNERS.map((name) => [name, here.allocate(name)]);
    const others = OWNERS.toReversed().map((name) => [name, there.allocate(name)]);
    assert.deepEqual(some, others.toReversed());
  });

  it('avoids the bit that the AWS CNI restores on packets of pods', () => {
    const marks = new MarkAllocator({ first: 0x1070, last: 0x1103 }, [], []);
    const given = Array.from({ length: 17 }, (_, index) =>
      marks.allocate(`default/s${index} cluster`),
    );
    for (const mark of given) assert.ok(mark !== undefined && (mark & 0x80) === 0);
  });

  it('keeps marks across restarts, by the records in the kernel', () => {
    const before = new MarkAllocator(RANGE, [], []);
    const record = OWNERS.slice(0, 8).map((name) => [name, before.allocate(name) ?? 0] as const);
    const after = new MarkAllocator(RANGE, record.toReversed(), []);
    for (const [name, mark] of record) assert.equal(after.allocate(name), mark);
  });

  it('knows recorded marks of another range as own, but does not allocate them', () => {
    const marks = new MarkAllocator(RANGE, [['default/s0 cluster', 0x9000]], []);
    assert.ok(marks.isOwn(0x9000));
    const mark = marks.allocate('default/s0 cluster') ?? 0;
    assert.ok(RANGE.first + 2 <= mark && mark <= RANGE.last);
  });

  it('keeps a mark for the first owner when two records claim it', () => {
    const marks = new MarkAllocator(
      RANGE,
      [
        ['default/s0 cluster', 0x1004],
        ['default/s1 cluster', 0x1004],
      ],
      [],
    );
    assert.equal(marks.allocate('default/s0 cluster'), 0x1004);
    assert.notEqual(marks.allocate('default/s1 cluster'), 0x1004);
  });
});
