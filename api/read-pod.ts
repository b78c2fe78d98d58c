/** Reads Pods. */
import type { SpecialRange } from './addresses.ts';
import { trimmedCopy } from './collections.ts';
import { intern } from './intern.ts';
import { PROTOCOLS } from './objects.ts';
import type { NamedPort, Pod } from './policy-objects.ts';
import { readAddress, requireOnePerFamily } from './read-address.ts';
import {
  child,
  type ObjectField,
  readInteger,
  readList,
  readOptionalBoolean,
  readOptionalEnum,
  readOptionalString,
} from './read-field.ts';
import { readCreationTimestamp, readMetadata } from './read-metadata.ts';
import { readDnsSubdomain } from './read-name.ts';
import { readLabels } from './read-selector.ts';

/**
 * Address ranges that a pod address must not be in. A policy for such an address would also apply
 * to other hosts.
 */
const NO_POD: readonly SpecialRange[] = ['unspecified', 'loopback', 'multicast', 'broadcast'];

/**
 * Reads a Pod of `v1`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readPod(raw: unknown): Pod {
  const { root, metadata, key, namespace, name } = readMetadata('Pod', raw);
  const spec = child(root, 'spec');
  const status = child(root, 'status');
  const nodeName = child(spec, 'nodeName');
  const phase = readOptionalString(child(status, 'phase'));
  return {
    kind: 'Pod',
    key,
    namespace: intern(namespace),
    name,
    creationTimestamp: readCreationTimestamp(metadata),
    labels: readLabels(metadata),
    addresses: trimmedCopy(readAddresses(status)),
    nodeName:
      readOptionalString(nodeName) === undefined ? undefined : intern(readDnsSubdomain(nodeName)),
    hostNetwork: readOptionalBoolean(child(spec, 'hostNetwork')) ?? false,
    finished: phase === 'Succeeded' || phase === 'Failed',
    namedPorts: trimmedCopy(readNamedPorts(spec)),
  };
}

function readAddresses(status: ObjectField): string[] {
  const list = child(status, 'podIPs');
  const addresses = readList(list).map((field) => readAddress(child(field, 'ip'), NO_POD));
  requireOnePerFamily(list, addresses);
  const single = child(status, 'podIP');
  return addresses.length === 0 && readOptionalString(single) !== undefined
    ? [readAddress(single, NO_POD)]
    : addresses;
}

/**
 * Reads named ports in the order of Kubernetes' FindPort: containers, then sidecars (init
 * containers with restartPolicy Always).
 */
function readNamedPorts(spec: ObjectField): NamedPort[] {
  const sidecars = readList(child(spec, 'initContainers')).filter(
    (container) => readOptionalString(child(container, 'restartPolicy')) === 'Always',
  );
  return [...readList(child(spec, 'containers')), ...sidecars].flatMap((container) =>
    readList(child(container, 'ports')).flatMap((field) => {
      const name = readOptionalString(child(field, 'name'));
      if (name === undefined) return [];
      const port = readInteger(child(field, 'containerPort'), 1, 65535);
      const protocol = readOptionalEnum(child(field, 'protocol'), PROTOCOLS, 'TCP');
      return [{ name: intern(name), protocol, port }];
    }),
  );
}
