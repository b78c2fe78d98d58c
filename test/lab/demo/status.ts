/** Steps of the demo that show what the agent says about its own network. */
import assert from 'node:assert/strict';
import type { DemoEnvironment } from './environment.ts';
import { heading, print } from './text.ts';

/** Lines to print of a long output. */
const MAX_LINES = 24;

/** Shows status, the Services, one Service, and the path of a packet. */
export async function showStatus(stage: DemoEnvironment): Promise<void> {
  const { allPorts, portRanges, lab } = stage;
  const [vip] = allPorts.vips;
  const [rangesVip] = portRanges.vips;
  const service = `default/${allPorts.name.split('.')[0]}`;
  heading('Look at the node: status, Services, one Service, and the path of a packet');
  const status = await show(stage, 'status');
  assert.match(status, /nftables|iptables/);
  const services = await show(stage, 'get', 'services');
  assert.match(services, new RegExp(vip));
  const description = await show(stage, 'describe', 'service', service);
  // The demo has removed its pods.
  assert.match(description, /NoEndpoints/);
  const packet = [lab.client.ipv4, rangesVip, '--proto=udp', '--port=20050'];
  const trace = await show(stage, 'trace', ...packet);
  assert.match(trace, new RegExp(rangesVip));
}

async function show(stage: DemoEnvironment, ...command: readonly string[]): Promise<string> {
  print('', `$ portwide ${command.join(' ')}`);
  const lines = await stage.portwide(...command);
  print(...lines.slice(0, MAX_LINES));
  if (lines.length > MAX_LINES) print(`… ${lines.length - MAX_LINES} more lines`);
  return lines.join('\n');
}
