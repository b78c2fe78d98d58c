/** Feeds cluster objects to a backend of a proxy mode. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { Backend } from '../../proxier/backend.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { upsertWithPods } from '../fixtures.ts';
import type { ClusterChange } from '../iptables/generated.ts';

/** @returns a function that passes the Routes of changed objects to the backend, without a sync. */
export function feeder(backend: Backend, family: IpFamily): (step: ClusterChange) => void {
  const table = new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
  return (step) => {
    if ('upsert' in step) upsertWithPods(table, step.upsert);
    else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
    else {
      table.setNodeAddresses(new Set(step.nodeAddresses));
      const addresses = step.nodeAddresses.filter((address) => familyOf(address) === family);
      backend.setNodeAddresses({ addresses, primary: addresses.slice(0, 1) });
    }
    const { upserts, removals } = table.takeChanges().routes;
    const isOurs = (route: { readonly family: IpFamily }) => route.family === family;
    backend.update(
      upserts.filter(isOurs),
      removals.filter(isOurs).map(({ id }) => id),
    );
  };
}
