import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiObject, Kind, ObjectKey } from '../../api/objects.ts';
import type { ObjectSink } from '../../sources/source.ts';

/** A sink that records calls, and fails on calls that a source must not make. */
export class RecordingSink implements ObjectSink {
  readonly objects = new Map<string, ApiObject>();
  /** `+ Service default/web`, `- Service default/web`, `synced Service`. */
  readonly calls: string[] = [];
  readonly syncedKinds = new Set<Kind>();

  upsert(object: ApiObject): void {
    const name = `${object.kind} ${object.key}`;
    assert.notDeepEqual(this.objects.get(name), object, `${name} was upserted without a change`);
    this.objects.set(name, object);
    this.calls.push(`+ ${name}`);
  }

  remove(kind: Kind, key: ObjectKey): void {
    const name = `${kind} ${key}`;
    assert.ok(this.objects.delete(name), `${name} was removed but does not exist`);
    this.calls.push(`- ${name}`);
  }

  synced(kind: Kind, namespace?: string): void {
    if (namespace !== undefined) {
      this.calls.push(`synced ${kind} ${namespace}`);
      return;
    }
    assert.ok(!this.syncedKinds.has(kind), `${kind} was synced twice`);
    this.syncedKinds.add(kind);
    this.calls.push(`synced ${kind}`);
  }

  /** Port number of a Service's first port; undefined without such a Service. */
  port(name: string): number | undefined {
    const object = this.objects.get(`Service default/${name}`);
    return object?.kind === 'Service' ? object.ports[0]?.port : undefined;
  }
}

/** Waits until the check returns true. */
export async function until(what: string, check: () => boolean): Promise<void> {
  const deadline = performance.now() + 10_000;
  while (!check()) {
    assert.ok(performance.now() < deadline, `timed out waiting until ${what}`);
    await sleep(2);
  }
}
