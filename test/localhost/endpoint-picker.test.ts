import assert from 'node:assert/strict';
import { EndpointPicker } from '../../localhost/endpoint-picker.ts';

const [A, B, C] = ['10.0.0.1', '10.0.0.2', '10.0.0.3'].map((address) => ({ address, port: 80 }));

describe('endpoint-picker: the endpoint of a connection to a node port on localhost', () => {
  assert.ok(A && B && C);
  let now = 0;
  let drawn = 0;
  const picker = (affinitySeconds: number) => {
    now = 0;
    drawn = 0;
    return new EndpointPicker(
      { endpoints: [A, B, C], affinitySeconds },
      () => now,
      () => drawn,
    );
  };

  it('is drawn anew for each', () => {
    const of = picker(0);
    assert.equal(of.pick(), A);
    drawn = 0.999;
    assert.equal(of.pick(), C);
    drawn = 0.34;
    assert.equal(of.pick(), B);
  });

  it('stays with session affinity, until nobody has connected for the timeout', () => {
    const of = picker(60);
    assert.equal(of.pick(), A);
    drawn = 0.5;
    now = 59_999;
    assert.equal(of.pick(), A);
    now += 59_999;
    assert.equal(of.pick(), A, 'each connection lengthens it');
    now += 60_000;
    assert.equal(of.pick(), B);
  });

  it('is another once the one it stayed on is gone', () => {
    const of = picker(60);
    of.pick();
    of.update({ endpoints: [{ ...B }, { ...C }], affinitySeconds: 60 });
    assert.deepEqual(of.pick(), B);
    drawn = 0.999;
    assert.deepEqual(of.pick(), B);
  });

  it('is never none', () => {
    const of = picker(0);
    assert.throws(() => of.update({ endpoints: [], affinitySeconds: 0 }), RangeError);
  });
});
