/** Pods of the API group `v1`. */
import type { SpecialRange } from './addresses.ts';
import { kept } from './collections.ts';
import { PROTOCOLS } from './objects.ts';
import type { NamedPort, Pod } from './policy-objects.ts';
import { address, onePerFamily } from './read-address.ts';
import {
  child,
  choice,
  type Field,
  integer,
  items,
  optionalBoolean,
  optionalText,
} from './read-field.ts';
import { creationTimestamp, readMetadata } from './read-metadata.ts';
import { dnsSubdomain } from './read-name.ts';
import { readLabels } from './read-selector.ts';
import { shared } from './shared-text.ts';

/** Addresses that many hosts have, or none: a policy for one of them would be for others. */
const NO_POD: readonly SpecialRange[] = ['unspecified', 'loopback', 'multicast', 'broadcast'];

/**
 * A Pod of the API group `v1`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readPod(raw: unknown): Pod {
  const { root, metadata, key, namespace, name } = readMetadata('Pod', raw);
  const spec = child(root, 'spec');
  const status = child(root, 'status');
  const nodeName = child(spec, 'nodeName');
  const phase = optionalText(child(status, 'phase'));
  return {
    kind: 'Pod',
    key,
    namespace: shared(namespace),
    name,
    creationTimestamp: creationTimestamp(metadata),
    labels: readLabels(metadata),
    addresses: kept(readAddresses(status)),
    nodeName: optionalText(nodeName) === undefined ? undefined : shared(dnsSubdomain(nodeName)),
    hostNetwork: optionalBoolean(child(spec, 'hostNetwork')) ?? false,
    finished: phase === 'Succeeded' || phase === 'Failed',
    namedPorts: kept(readNamedPorts(spec)),
  };
}

function readAddresses(status: Field): string[] {
  const list = child(status, 'podIPs');
  const addresses = items(list).map((field) => address(child(field, 'ip'), NO_POD));
  onePerFamily(list, addresses);
  const single = child(status, 'podIP');
  return addresses.length === 0 && optionalText(single) !== undefined
    ? [address(single, NO_POD)]
    : addresses;
}

/** As Kubernetes' FindPort, of containers, then of init containers that go on to run. */
function readNamedPorts(spec: Field): NamedPort[] {
  const sidecars = items(child(spec, 'initContainers')).filter(
    (container) => optionalText(child(container, 'restartPolicy')) === 'Always',
  );
  return [...items(child(spec, 'containers')), ...sidecars].flatMap((container) =>
    items(child(container, 'ports')).flatMap((field) => {
      const name = optionalText(child(field, 'name'));
      if (name === undefined) return [];
      const port = integer(child(field, 'containerPort'), 1, 65535);
      const protocol = choice(child(field, 'protocol'), PROTOCOLS, 'TCP');
      return [{ name: shared(name), protocol, port }];
    }),
  );
}
