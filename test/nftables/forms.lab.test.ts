import assert from 'node:assert/strict';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { nftFamily } from '../../nft/rule.ts';
import { tableScript } from '../../nftables/table-script.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { allChains, type ModeOptions } from './options.ts';

/** nft adds a byteorder expression for the one-byte protocol before range lookups, without effect. */
const BYTEORDER_OF_PROTOCOL = /; byteorder 1=(\w+) 2=\1 3=00000001 4=00000001 5=00000002/g;
/** It swaps the bytes of a slot there, in rules and in elements. In maps of numbers the agent swaps neither. */
const BYTEORDER_OF_SLOT =
  /(?<=; numgen [^;]*); byteorder 1=(\w+) 2=\1 3=00000001 4=00000004 5=00000004/g;

function rulesOnly(state: Readonly<Record<string, readonly string[]>>) {
  return Object.entries(state)
    .filter(([name]) => name.startsWith('chain '))
    .map(([name, rules]) => [
      name,
      rules.map((rule) =>
        withRelativeRegisters(
          rule.replaceAll(BYTEORDER_OF_PROTOCOL, '').replaceAll(BYTEORDER_OF_SLOT, ''),
        ),
      ),
    ]);
}

/** nft may choose other registers for the input of a hash and the data of an update, as long as they are contiguous. */
function withRelativeRegisters(rule: string): string {
  const data = /dynset 4=\w+ 5=(\w+)|hash 1=(\w+)/.exec(rule)?.slice(1).find(Boolean);
  if (data === undefined) return rule;
  const first = word(data);
  return rule.replaceAll(/(?<=(?:payload|meta|ct|hash) 1=|dynset 4=\w+ 5=)\w+/g, (register) =>
    word(register) < first ? register : `data + ${word(register) - first}`,
  );
}

/** Registers 1 to 4 have 16 bytes; registers from 8 on are the same memory in units of 4 bytes. */
function word(register: string): number {
  const number = Number.parseInt(register, 16);
  return number < 8 ? (number - 1) * 4 : number - 8;
}

describe('forms: rules written by nft and by the agent', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const load = (script: string) => helper.call('hold', script, 'nft', '-f', '-');

  async function check(options: ModeOptions, withAffinity: boolean): Promise<void> {
    const { family } = options;
    const chains = allChains(options, withAffinity);
    await load(tableScript(chains, [], family));
    const fromText = rulesOnly(await helper.call('modeState', family));
    await namespace.run('nft', 'delete', 'table', nftFamily(family), 'portwide');
    await helper.call('modeRules', options, withAffinity);
    const fromBytes = rulesOnly(await helper.call('modeState', family));
    assert.equal(fromBytes.length, chains.length);
    assert.deepEqual(fromBytes, fromText);
  }

  // For a prefix of whole bytes nft compares these bytes without a mask; the agent always masks.
  const cidrs: Readonly<Record<IpFamily, string>> = {
    IPv4: '10.244.0.0/15',
    IPv6: 'fd00:10:244::/47',
  };
  for (const family of IP_FAMILIES) {
    // nft 1.0.6 aborts on session affinity rules with IPv6 ("Assertion dreg < ctx->reg_low").
    const withAffinity = family === 'IPv4';
    const detectors: readonly (readonly [string, LocalDetector | undefined])[] = [
      ['CIDR', { kind: 'cidr', cidr: cidrs[family] }],
      ['interface', { kind: 'interface', name: 'cni0' }],
      ['prefix of interfaces', { kind: 'interface', name: 'cali+' }],
      ['nothing', undefined],
    ];
    for (const [detector, localDetector] of detectors) {
      it(`nft and netlink write equal rules (${family}, pods detected by ${detector})`, () =>
        check({ family, localDetector, serviceCidrs: [cidrs[family]] }, withAffinity));
    }
    it(`nft and netlink write equal rules for any masquerade bit (${family})`, async () => {
      for (const masqueradeBit of [0, 31]) {
        const others = {
          masqueradeAll: true,
          localDetector: undefined,
          serviceCidrs: [],
          resetsTcp: true,
          rejectsOnLocalhost: true,
        };
        await check({ family, masqueradeBit, ...others }, withAffinity);
        await namespace.run('nft', 'flush', 'ruleset');
      }
    });
  }
});
