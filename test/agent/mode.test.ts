import assert from 'node:assert/strict';
import pino from 'pino';
import { AgentEvents } from '../../agent/events.ts';
import { pickMode } from '../../agent/mode.ts';
import { PROXY_MODES } from '../../config/node-settings.ts';
import { DEFAULTS } from '../../config/settings.ts';

describe('mode: pickMode', () => {
  it('warns on the Node that mode ipvs is deprecated, and of no other mode that was set', async () => {
    const recorded: unknown[] = [];
    const events = {
      normal: assert.fail,
      sharedWarning: assert.fail,
      warning: ({ kind, name }: { kind: string; name: string }, reason: string, note: string) =>
        recorded.push([kind, name, reason, note.split(':')[0]]),
    };
    const toEvents = new AgentEvents(events, 'node-a', { service: () => undefined });
    for (const proxyMode of PROXY_MODES) {
      const log = pino({ enabled: false });
      const { warning } = await pickMode({ ...DEFAULTS, proxyMode }, log);
      if (warning !== undefined) toEvents.modeWarning(warning);
    }
    assert.deepEqual(recorded, [['Node', 'node-a', 'IPVSDeprecation', 'mode ipvs is deprecated']]);
  });

  it('limits ranges by rules or by ports, whichever the mode writes', async () => {
    const limitIn = async (settings: Partial<typeof DEFAULTS>) => {
      const options = { ...DEFAULTS, ...settings };
      return (await pickMode(options, pino({ enabled: false }))).rangeLimit?.(options);
    };
    const byRules = { max: 4096, unit: 'ranges' };
    assert.equal(await limitIn({ proxyMode: 'nftables' }), undefined);
    assert.deepEqual(await limitIn({ proxyMode: 'iptables' }), byRules);
    assert.deepEqual(await limitIn({ proxyMode: 'ipvs' }), { max: 524_288, unit: 'ports' });
    assert.deepEqual(await limitIn({ proxyMode: 'ipvs', ipvsAllPorts: 'iptables' }), byRules);
  });
});
