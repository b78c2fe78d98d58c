import assert from 'node:assert/strict';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { paddedLength } from '../../netlink/nftables/set-description.ts';
import { type Declaration, declarationText } from '../../nft/declaration.ts';
import { nftFamily, nftRuleText } from '../../nft/rule.ts';
import { tableDeclarations } from '../../nftables/static-chains.ts';
import {
  POLICY_TABLE,
  policyDeclarations,
  staticChains,
} from '../../policy/compile/policy-table.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { allChains } from './options.ts';

/** The text of a declaration. Ordered sets have the only key that nft takes for a number: bytes of a packet. */
function textForNft(declared: Declaration): string {
  if (declared.kind !== 'set' || declared.isOrdered !== true) return declarationText(declared);
  const bits = declared.key.reduce((sum, field) => sum + paddedLength(field), 0) * 8;
  const [only] = declared.key;
  assert.ok(only !== undefined);
  return declarationText({ ...declared, key: [{ ...only, text: `@nh,0,${bits}` }] });
}

/** nft compares with both ends of a range, and loads a field again before each comparison. */
const inFormOfAgent = (rule: string) =>
  rule
    .replaceAll(
      /cmp 1=00000001 2=00000005 3=(\w+); cmp 1=00000001 2=00000003 3=(\w+)/g,
      'range 1=00000001 2=00000000 3=$1 4=$2',
    )
    .replaceAll(/(?<=meta 2=00000010 1=00000001(; cmp [^;]+)+); meta 2=00000010 1=00000001/g, '');

const tableText = (family: IpFamily, table: string, declarations: readonly Declaration[]) =>
  [`table ${nftFamily(family)} ${table} {`, ...declarations.map(textForNft), '}', ''].join('\n');

describe('declarations: tables declared by nft and by the agent', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const load = (script: string) => helper.call('hold', script, 'nft', '-f', '-');
  const state = async (family: IpFamily, table: string) => ({
    objects: await helper.call('modeObjects', family, table),
    listing: await namespace.run('nft', 'list', 'table', nftFamily(family), table),
  });

  async function check(
    family: IpFamily,
    table: string,
    declarations: readonly Declaration[],
  ): Promise<number> {
    await load(tableText(family, table, declarations));
    const byNft = await state(family, table);
    await namespace.run('nft', 'delete', 'table', nftFamily(family), table);
    await helper.call('modeDeclare', family, table, declarations);
    const byAgent = await state(family, table);
    assert.deepEqual(byAgent.objects, byNft.objects);
    assert.equal(byAgent.listing, byNft.listing);
    return Object.keys(byAgent.objects).length;
  }

  for (const family of IP_FAMILIES) {
    it(`are equal in the kernel, byte for byte, and in listings, for Services (${family})`, async () => {
      const chains = allChains(
        { family, resetsTcp: true, rejectsOnLocalhost: true, usesFlowtable: false },
        true,
      );
      const declarations = tableDeclarations(chains, family);
      assert.ok(declarations.some((each) => each.kind === 'set' && each.isOrdered));
      assert.equal(await check(family, 'portwide', declarations), declarations.length + 1);
    });

    it(`are equal for network policy (${family})`, async () => {
      const options = { family, logGroup: 1 };
      const declarations = policyDeclarations(options, staticChains(options), new Map());
      assert.equal(await check(family, POLICY_TABLE, declarations), declarations.length + 1);
    });

    it(`have equal rules for network policy (${family})`, async () => {
      // The kernel of this machine may lack targets `log` and `queue`.
      const options = { family, hasQueue: false };
      const chains = staticChains(options);
      const declarations = policyDeclarations(options, chains, new Map());
      const table = `${nftFamily(family)} ${POLICY_TABLE}`;
      const rules = chains.flatMap(({ name, rules }) =>
        [...rules].map(({ rule }) => `add rule ${table} ${name} ${nftRuleText(rule)}`),
      );
      await load(`${tableText(family, POLICY_TABLE, declarations)}${rules.join('\n')}\n`);
      const byNft = (await helper.call('modeRuleTexts', family, POLICY_TABLE)).map(inFormOfAgent);
      await namespace.run('nft', 'delete', 'table', nftFamily(family), POLICY_TABLE);
      await helper.call('modePolicyRules', options);
      const byAgent = await helper.call('modeRuleTexts', family, POLICY_TABLE);
      assert.equal(byAgent.length, rules.length);
      assert.deepEqual(byAgent, byNft);
    });
  }

  it('are refused if an object exists with another type, and nothing is applied', async () => {
    await load('table ip portwide { set service-ports { type mark; }; }');
    const declarations = tableDeclarations(allChains({ family: 'IPv4' }, true), 'IPv4');
    await assert.rejects(helper.call('modeDeclare', 'IPv4', 'portwide', declarations), {
      message: 'set service-ports: EEXIST',
    });
    const objects = await helper.call('modeObjects', 'IPv4', 'portwide');
    assert.deepEqual(Object.keys(objects), ['set service-ports', 'table portwide']);
  });

  for (const family of IP_FAMILIES) {
    it(`can be asked about: the kernel says what it refuses, and applies nothing (${family})`, async () => {
      const rules = () => namespace.run('nft', 'list', 'ruleset');
      await load('table inet other { chain a { }; }');
      const before = await rules();
      assert.equal(await helper.call('modeCheck', family, 'known'), undefined);
      assert.equal(
        await helper.call('modeCheck', family, 'unknown'),
        'the kernel refuses rule 0 of chain base, expression lookup: ENOENT',
      );
      assert.equal(await rules(), before);
    });
  }

  it('are accepted with all rules by the kernel of this node', async () => {
    const { families, hashProblem } = await helper.call('modeSupport');
    assert.deepEqual([families, hashProblem], [IP_FAMILIES, undefined]);
    assert.equal(await namespace.run('nft', 'list', 'ruleset'), '');
  });
});
