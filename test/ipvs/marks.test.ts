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

/** What is given by hand: who has which mark, and who went, the longest gone first. */
class Model {
  readonly marks = new Map<string, number>();
  gone: string[] = [];
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
      this.gone.push(name);
    }
  }

  take(name: string, mark: number | undefined): void {
    this.gone = this.gone.filter((each) => each !== name);
    const had = this.marks.get(name);
    if (had !== undefined) assert.equal(mark, had, 'an owner keeps its mark');
    else if (this.free.size > 0) assert.ok(mark !== undefined && this.free.delete(mark));
    else {
      const longest = this.gone.shift();
      assert.equal(mark, longest === undefined ? undefined : this.marks.get(longest));
      if (longest !== undefined) this.marks.delete(longest);
    }
    if (mark !== undefined) this.marks.set(name, mark);
  }

  release(name: string): void {
    if (!this.marks.has(name)) return;
    this.gone = [...this.gone.filter((each) => each !== name), name];
  }
}

describe('marks of all-ports Services', () => {
  it('are given to one owner each, kept beyond its end, and taken from the longest gone at last', () => {
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
          assert.equal(marks.inUse, model.marks.size - model.gone.length);
        }
        for (const mark of [...model.marks.values()]) assert.ok(marks.isOwn(mark));
      }),
      { seed: 42, numRuns: 1000 },
    );
  });

  it('are the same on every node that has room', () => {
    const wide = { first: 0x1000, last: 0x3fff };
    const [here, there] = [new MarkAllocator(wide, [], []), new MarkAllocator(wide, [], [])];
    const some = OWNERS.map((name) => [name, here.allocate(name)]);
    const others = OWNERS.toReversed().map((name) => [name, there.allocate(name)]);
    assert.deepEqual(some, others.toReversed());
  });

  it('have no bit that the AWS CNI takes from packets of pods', () => {
    const marks = new MarkAllocator({ first: 0x1070, last: 0x1103 }, [], []);
    const given = Array.from({ length: 17 }, (_, index) =>
      marks.allocate(`default/s${index} cluster`),
    );
    for (const mark of given) assert.ok(mark !== undefined && (mark & 0x80) === 0);
  });

  it('survive the agent: who had which is on record in the kernel', () => {
    const before = new MarkAllocator(RANGE, [], []);
    const record = OWNERS.slice(0, 8).map((name) => [name, before.allocate(name) ?? 0] as const);
    const after = new MarkAllocator(RANGE, record.toReversed(), []);
    for (const [name, mark] of record) assert.equal(after.allocate(name), mark);
  });

  it('of another range are on record as ours, but are not given again', () => {
    const marks = new MarkAllocator(RANGE, [['default/s0 cluster', 0x9000]], []);
    assert.ok(marks.isOwn(0x9000));
    const mark = marks.allocate('default/s0 cluster') ?? 0;
    assert.ok(RANGE.first + 2 <= mark && mark <= RANGE.last);
  });

  it('of two that claim one mark, the first has it', () => {
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
