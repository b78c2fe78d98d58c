import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { AppliedState } from '../../../policy/compile/applied-state.ts';
import { PolicyModel } from '../../../policy/model/model.ts';
import {
  adminPolicy,
  group,
  HERE,
  labelled,
  namespace,
  network,
  networkPolicy,
  node,
  peerPods,
  pod,
  rule,
  type TestObject,
  tcp,
} from '../objects.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Objects of each kind that refer to each other; each number has its own. */
function objectsOf(number: number): TestObject[] {
  const name = `team-${number}`;
  const addresses = [`10.${number >> 16}.${(number >> 8) & 255}.${number & 255}`];
  const selector = labelled({ number: `${number}` });
  const fields = { namespace: name, labels: { number: `${number}` }, addresses };
  const rules = [
    rule({ peers: [peerPods(selector, name)] }),
    rule({ peers: [peerPods(selector, selector), network(`10.0.0.0/${8 + (number % 9)}`)] }),
    rule({ peers: [{ kind: 'nodes', selector }], ports: [tcp((number % 60_000) + 1)] }),
    rule({ peers: [{ kind: 'cidrGroups', selector }], ports: [{ protocol: 'TCP', name: 'web' }] }),
    rule({ peers: [{ kind: 'domainName', pattern: `${name}.example.com` }] }),
  ];
  return [
    namespace(name, { number: `${number}` }),
    pod('a', fields),
    pod('b', { ...fields, namedPorts: [{ name: 'web', protocol: 'TCP', port: 80 }] }),
    node(name, [`172.16.${(number >> 8) & 255}.${number & 255}`], { number: `${number}` }),
    group(name, { number: `${number}` }, ['192.0.2.0/24']),
    networkPolicy(name, { namespace: name, ingress: rules.slice(0, 2) }),
    adminPolicy(name, { subject: { namespaces: name, pods: [] }, egress: rules }),
  ];
}

describe('memory: memory use of the policy model', () => {
  it('does not leak memory for deleted objects', () => {
    const model = new PolicyModel({ nodeName: HERE });
    const applied = new AppliedState(model);
    const churn = (from: number, count: number) => {
      for (let number = from; number < from + count; number++) {
        const objects = objectsOf(number);
        for (const object of objects) model.upsert(object);
        assert.ok(applied.takeChanges().length > 0);
        // Delete the namespace before or after its content.
        for (const { kind, key } of number % 2 ? objects : objects.toReversed())
          model.remove(kind, key);
        applied.takeChanges();
      }
      collectGarbage();
      return process.memoryUsage().heapUsed;
    };
    const COUNT = 6000;
    const before = churn(0, 3000);
    const each = (churn(3000, COUNT) - before) / COUNT;
    // A single leaked map entry takes more.
    assert.ok(each < 32, `${each} bytes for each`);
  });
});
