import assert from 'node:assert/strict';
import { EndpointPicker } from '../../localhost/endpoint-picker.ts';

const [A, B, C] = ['10.0.0.1', '10.0.0.2', '10.0.0.3'].map((address) => ({ address, port: 80 }));

describe('endpoint-picker: endpoints of connections to a node port on localhost', () => {
  assert.ok(A && B && C);
  let now = 0;
  let random = 0;
  const picker = (affinitySeconds: number) => {
    now = 0;
    random = 0;
    return new EndpointPicker(
      { endpoints: [A, B, C], affinitySeconds },
      () => now,
      () => random,
    );
  };

  it('selects a random endpoint for each connection', () => {
    const of = picker(0);
    assert.equal(of.pick(), A);
    random = 0.999;
    assert.equal(of.pick(), C);
    random = 0.34;
    assert.equal(of.pick(), B);
  });

  it('keeps the endpoint with session affinity until no client has connected for the timeout', () => {
    const of = picker(60);
    assert.equal(of.pick(), A);
    random = 0.5;
    now = 59_999;
    assert.equal(of.pick(), A);
    now += 59_999;
    assert.equal(of.pick(), A, 'each connection extends the timeout');
    now += 60_000;
    assert.equal(of.pick(), B);
  });

  it('selects another endpoint when the kept one is removed', () => {
    const of = picker(60);
    of.pick();
    of.update({ endpoints: [{ ...B }, { ...C }], affinitySeconds: 60 });
    assert.deepEqual(of.pick(), B);
    random = 0.999;
    assert.deepEqual(of.pick(), B);
  });

  it('throws when there is no endpoint', () => {
    const of = picker(0);
    assert.throws(() => of.update({ endpoints: [], affinitySeconds: 0 }), RangeError);
  });
});
