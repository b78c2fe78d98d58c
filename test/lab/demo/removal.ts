/** Demo step: a pod is removed from the Service. */
import assert from 'node:assert/strict';
import { type Host, waitFor } from '../lab.ts';
import { DEADLINE_MS, type DemoEnvironment, replyOf } from './environment.ts';
import { randomPorts } from './random.ts';
import { grouped, heading, print } from './text.ts';

/** Removes a pod while connections are being opened. */
export async function showRemoval(stage: DemoEnvironment, seed: number): Promise<void> {
  const { lab, pods, allPorts } = stage;
  const [vip] = allPorts.vips;
  const held = await lab.client.hold(vip, 5222);
  const leaver = pods.find(({ name }) => name !== held.reply.host);
  assert.ok(leaver);
  const rest = pods.filter((pod) => pod !== leaver);
  assert.equal(await held.exchange('before'), 'before');

  const ports = randomPorts(seed, 500);
  const traffic = startTraffic(lab.client, vip, ports);
  await traffic.until(`${leaver.name} is in use`, () => traffic.last(leaver) > 0);
  const changed = stage.keepEndpoints(allPorts, rest);
  await traffic.until(
    `${leaver.name} gets no new connection`,
    // A pod that is still in use misses a hundred in a row once in some 10^12 runs.
    () => traffic.since(Math.max(changed, traffic.last(leaver))) >= 100,
  );
  const opened = await traffic.stop();
  const delay = Math.max(0, traffic.last(leaver) - changed);
  const { answered } = await lab.client.burst(vip, ports, 200);
  const late = rest.map(({ name }) => answered[name] ?? 0);
  assert.equal(
    late.reduce((sum, count) => sum + count, 0),
    200,
    'the remaining pods answer',
  );
  assert.equal(await held.exchange('after'), 'after');
  assert.ok(held.alive);
  await held.close();

  heading(`${leaver.name} is removed from the Service while the client opens connections`);
  print(
    `The file was replaced by one without ${leaver.name} in its EndpointSlices.`,
    `The last new connection to ${leaver.name} was opened ${Math.ceil(delay)} ms after that.`,
    `Of 200 more, ${rest.map(({ name }, index) => `${late[index]} went to ${name}`).join(', ')}.`,
    `All ${grouped(opened)} connections opened around the change were answered, and one to`,
    `${held.reply.host} that stayed open throughout still works.`,
  );
}

/** Opens connections one after the other, a few in parallel, until stopped. */
function startTraffic(client: Host, address: string, ports: readonly number[]) {
  const seen: { readonly opened: number; readonly by: string }[] = [];
  let isRunning = true;
  let next = 0;
  const lane = async () => {
    while (isRunning) {
      const port = ports[next % ports.length] ?? 1;
      next += 1;
      const opened = performance.now();
      seen.push({ opened, by: replyOf(await client.tcp(address, port)).host });
    }
  };
  const lanes = Promise.all([lane(), lane(), lane(), lane()]);
  // until() and stop() report the error; avoid an unhandled rejection before.
  lanes.catch(() => undefined);
  return {
    /** Time when the last connection answered by this host was opened; 0 if none. */
    last: (host: Host) =>
      seen.reduce((last, { opened, by }) => (by === host.name ? Math.max(last, opened) : last), 0),
    /** Number of answered connections opened after that. */
    since: (when: number) => seen.filter(({ opened }) => opened > when).length,
    /** Waits for a condition; fails at once if a connection is not answered. */
    until: async (description: string, condition: () => boolean) => {
      await Promise.race([waitFor(description, condition, DEADLINE_MS), lanes]);
    },
    /** Number of opened connections; fails if one was not answered. */
    stop: async () => {
      isRunning = false;
      await lanes;
      return seen.length;
    },
  };
}
