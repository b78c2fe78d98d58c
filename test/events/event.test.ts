import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  eventBody,
  eventName,
  nodeRef,
  reportingInstanceOf,
  serviceRef,
} from '../../events/event.ts';

const TIME = { name: 'web.1', time: 0 };

describe('event: an Event', () => {
  const body = (note: string, regarding = serviceRef('default/web', '')) =>
    eventBody(
      {
        type: 'Normal',
        regarding,
        reason: 'Starting',
        action: 'StartPortwide',
        note,
        scope: 'node',
      },
      reportingInstanceOf('node-a'),
      TIME,
      undefined,
    ) as { note: string; metadata: object; regarding: object };

  it('is in namespace default and references a Node as the kubelet does', () => {
    const { metadata, regarding } = body('', nodeRef('node-a'));
    assert.deepEqual(metadata, { name: 'web.1', namespace: 'default' });
    assert.deepEqual(regarding, {
      apiVersion: 'v1',
      kind: 'Node',
      namespace: '',
      name: 'node-a',
      uid: 'node-a',
    });
  });

  it('omits an unknown uid', () => {
    assert.ok(!Object.hasOwn(body('').regarding, 'uid'));
  });

  it('truncates the note only when it exceeds the API server’s limit', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 1200, size: 'max' }), (note) => {
        const written = body(note).note;
        assert.ok(Buffer.byteLength(written) <= 1024);
        if (Buffer.byteLength(note) <= 1024) assert.equal(written, note);
        else {
          assert.ok(written.endsWith('...') && note.startsWith(written.slice(0, -3)));
          assert.ok(Buffer.byteLength(written) > 1000);
        }
      }),
      { seed: 42, numRuns: 300 },
    );
  });

  it('has a valid name that differs each time', () => {
    const label = fc.stringMatching(/^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/);
    fc.assert(
      fc.property(label, fc.integer({ min: 0, max: 4e12 }), (name, time) => {
        const named = eventName(nodeRef(name), time, 999_999);
        assert.ok(named.length <= 253, named);
        assert.match(named, /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\.[0-9a-f]+$/);
        assert.notEqual(named, eventName(nodeRef(name), time, 0));
        assert.notEqual(named, eventName(nodeRef(name), time + 1, 0));
      }),
      { seed: 42, numRuns: 300 },
    );
  });

  it('truncates a long reporting instance', () => {
    const instance = reportingInstanceOf('n'.repeat(253));
    assert.match(instance, /^portwide-n+$/);
    assert.equal(instance.length, 128);
  });
});
