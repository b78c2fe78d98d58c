/** The act that shows rules. */
import assert from 'node:assert/strict';
import { iptablesRules } from '../lab.ts';
import type { Stage } from './stage.ts';
import { folded, heading, say } from './text.ts';

/** The rules of one cluster IP, out of the node's kernel. */
export async function showRules({ lab, pods, allPorts }: Stage): Promise<void> {
  const [vip] = allPorts.vips;
  const saved = (await iptablesRules(lab.node, 'nft', 4, 'nat')).split('\n');
  const chain = (name: string) => saved.filter((rule) => rule.startsWith(`-A ${name} `));
  const targets = (rules: readonly string[], kind: string) =>
    rules.flatMap((rule) => rule.match(new RegExp(`-j (${kind}-\\w+)$`))?.[1] ?? []);

  const leaf = saved.filter((rule) => / -j KUBE-SVC-\w+$/.test(rule) && rule.includes(`${vip}/`));
  assert.equal(leaf.length, 1, `one rule for ${vip}`);
  assert.doesNotMatch(leaf.join(), / -p | --dports? /);
  const [service = ''] = targets(leaf, 'KUBE-SVC');
  const choice = chain(service).filter((rule) => / -j KUBE-SEP-\w+$/.test(rule));
  const fromOutside = chain(service).filter((rule) => rule.endsWith(' -j KUBE-MARK-MASQ'));
  const odds = choice.map((rule) =>
    Math.round(1 / Number(rule.match(/ --probability ([\d.]+) /)?.[1] ?? 1)),
  );
  const equal = pods.map((_, index) => pods.length - index);
  assert.deepEqual(odds, equal, 'a rule for each pod, and the same chance for all');
  assert.equal(fromOutside.length, 1);
  const endpoints = targets(choice, 'KUBE-SEP').map(chain);
  for (const rules of endpoints) assert.equal(rules.length, 2);
  const [toItself = '', translate = ''] = endpoints[0] ?? [];
  assert.match(toItself, / -j KUBE-MARK-MASQ$/);
  assert.match(translate, new RegExp(` -j DNAT --to-destination ${lab.pods[0]?.ipv4}$`));
  const count = [leaf, chain(service), ...endpoints].flat().length;

  heading(`The rules for ${vip} in the kernel of the node`);
  const rule = (text: string) => say(...folded(text).map((line) => `  ${line}`));
  say('Whatever is sent to this address, at any port, by any protocol, is for the Service:');
  leaf.forEach(rule);
  say(
    'If the sender is no pod, the node will stand in for it, so that answers come back this way:',
  );
  fromOutside.forEach(rule);
  const [first = 0, second = 0] = odds;
  say(
    `A pod is drawn by lot: the first by 1 in ${first}, else the second by 1 in ${second}, and so on:`,
  );
  choice.forEach(rule);
  say('If that pod is the sender itself, the node will stand in for it, too:');
  rule(toItself);
  say('The packet gets the address of the pod. No port is named here, so it keeps its own:');
  rule(translate);
  say(`Each other pod has two such rules. That makes ${count} rules, and they serve every port.`);
}
