/** Health check node ports that cannot be bound, as problems of the status API. Pure. */
import { familyOf, socketAddress } from '../../api/addresses.ts';
import type { UnboundHealthPort } from '../../health/health-check-servers.ts';
import type { Problem } from '../api/common.ts';

/** The reason of the problem and of the Event, as in kube-proxy. */
export const UNBOUND_HEALTH_PORT = 'FailedToStartServiceHealthcheck';

export function unboundHealthPortProblem({
  serviceKey,
  host,
  port,
  error,
}: UnboundHealthPort): Problem {
  return {
    reason: UNBOUND_HEALTH_PORT,
    message: `health check node port ${socketAddress(host, port)} cannot be served (${error.message}); load balancers may believe the answers of another process; retrying`,
    object: `Service ${serviceKey}`,
    family: familyOf(host),
  };
}
