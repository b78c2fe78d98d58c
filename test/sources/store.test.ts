import assert from 'node:assert/strict';
import { fanOut } from '../../sources/store.ts';
import { namespace } from '../policy/objects.ts';
import { Recorder } from './recorder.ts';

it('a sink of several hands everything to each of them', () => {
  const sinks = [new Recorder(), new Recorder()];
  const sink = fanOut(sinks);
  sink.upsert(namespace('default'));
  sink.synced('Namespace');
  sink.remove('Namespace', 'default');
  for (const { calls } of sinks) {
    assert.deepEqual(calls, ['+ Namespace default', 'synced Namespace', '- Namespace default']);
  }
});
