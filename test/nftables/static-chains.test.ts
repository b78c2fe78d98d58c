import assert from 'node:assert/strict';
import { baseChainText } from '../../nft/declaration.ts';
import { nftRuleText } from '../../nft/rule.ts';
import { staticServiceChains } from '../../nftables/static-chains.ts';
import { modeOptions } from './options.ts';

describe('static-chains: base chains and static rules', () => {
  const chains = staticServiceChains(modeOptions());
  const rules = (name: string) => {
    const chain = chains.find((each) => each.name === name);
    assert.ok(chain !== undefined, name);
    return chain.rules.map(nftRuleText);
  };
  /** The maps that a chain looks up in order, and its other rules. */
  const lookups = (name: string) =>
    rules(name).map(
      (rule) => /@\S+/.exec(rule)?.[0].slice(1) ?? rule.split(' ').slice(-2).join(' '),
    );

  it('looks up the most specific match first', () => {
    const thrice = (name: string) => Array<string>(3).fill(name);
    assert.deepEqual(lookups('services'), [
      'health-check-node-ports',
      'service-ports',
      'range-vips',
      'service-ips',
      'node-port-ips',
    ]);
    assert.deepEqual(lookups('service-endpoints-check'), [
      'health-check-node-ports',
      'no-endpoint-ports',
      'no-endpoint-range-vips',
      'no-endpoint-ips',
      'service-range-ips',
      'node-port-ips',
    ]);
    assert.deepEqual(lookups('cluster-ips-check'), [
      'jump service-endpoints-check',
      'cluster-ips',
      '10.96.0.0/16 drop',
    ]);
    assert.deepEqual(lookups('update-affinity'), [
      ...thrice('affinity-update-ports'),
      'affinity-update-range-vips',
      'affinity-update-ips',
      ...thrice('node-port-ips'),
    ]);
    assert.deepEqual(
      rules('drop-port-zero'),
      ['tcp', 'udp', 'sctp'].map((protocol) => `meta l4proto ${protocol} th dport 0 drop`),
    );
  });

  it('accepts TCP to the health check node port before dispatch and before the endpoint check', () => {
    for (const name of ['services', 'service-endpoints-check']) {
      assert.equal(
        rules(name)[0],
        'meta l4proto tcp ip daddr . th dport @health-check-node-ports accept',
      );
    }
  });

  it('rejects and counts UDP and SCTP localhost node ports on arrival when enabled', () => {
    assert.ok(!chains.some(({ name }) => name.startsWith('reject-localhost-')));
    const more = staticServiceChains(modeOptions({ rejectsOnLocalhost: true }));
    assert.deepEqual(
      more.filter(({ counter }) => counter).map((chain) => chain.rules.map(nftRuleText)),
      ['udp', 'sctp'].map((protocol) => [
        `iifname "lo" counter name "localhost-nodeport-rejected-${protocol}" goto reject-packet`,
      ]),
    );
  });

  it('declares base chains with their hooks and priorities', () => {
    const hooks = chains.flatMap(({ name, base }) =>
      base === undefined ? [] : [`${name}: ${baseChainText(base)} ${rules(name).join('; ')}`],
    );
    const filterRules = (name: string) =>
      `ct state new ct status dnat goto drop-port-zero; ct state new goto ${name}`;
    assert.deepEqual(hooks, [
      'nat-prerouting: type nat hook prerouting priority -100; policy accept; jump services',
      'nat-output: type nat hook output priority -100; policy accept; jump services',
      'nat-input-affinity: type nat hook input priority 99; policy accept; ct status dnat goto update-affinity',
      'nat-postrouting-affinity: type nat hook postrouting priority 99; policy accept; ct status dnat goto update-affinity',
      'nat-postrouting: type nat hook postrouting priority 100; policy accept; ' +
        'ct status dnat ip saddr . ip daddr @hairpin-connections masquerade fully-random; ' +
        'meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random',
      `filter-input: type filter hook input priority 0; policy accept; ${filterRules('service-endpoints-check')}`,
      `filter-forward: type filter hook forward priority 0; policy accept; ${filterRules('cluster-ips-check')}`,
      `filter-output: type filter hook output priority 0; policy accept; ${filterRules('cluster-ips-check')}`,
    ]);
  });
});
