import assert from 'node:assert/strict';
import { fanOut } from '../../sources/source.ts';
import { namespace } from '../policy/objects.ts';
import { RecordingSink } from './recording-sink.ts';

it('fanOut forwards every call to each sink', () => {
  const sinks = [new RecordingSink(), new RecordingSink()];
  const sink = fanOut(sinks);
  sink.upsert(namespace('default'));
  sink.synced('Namespace');
  sink.remove('Namespace', 'default');
  for (const { calls } of sinks) {
    assert.deepEqual(calls, ['+ Namespace default', 'synced Namespace', '- Namespace default']);
  }
});
