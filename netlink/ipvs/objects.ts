/** IPVS virtual services and destinations (real servers), and changes to them. */
import type { IpFamily, Protocol } from '../../api/objects.ts';

/** Identifies a virtual service. */
export type IpvsServiceKey = { readonly family: IpFamily } & (
  | {
      readonly kind: 'address';
      readonly protocol: Protocol;
      /** Canonical text of the same family. */
      readonly address: string;
      readonly port: number;
    }
  | {
      readonly kind: 'mark';
      /** The full 32-bit packet mark (fwmark); never 0. */
      readonly mark: number;
    }
);

export interface IpvsServiceConfig {
  /** Name of the scheduler, as in its module `ip_vs_<scheduler>`; at most 15 characters. */
  readonly scheduler: string;
  /**
   * IP_VS_SVC_F_SCHED1 to 3 (8, 16, 32), whose meaning depends on the scheduler; 0 for none. A
   * listed service of another program may have IP_VS_SVC_F_ONEPACKET (4).
   */
  readonly schedulerFlags: number;
  /**
   * Seconds that a client stays on its destination (session affinity); 0 for none. A client is one
   * address.
   */
  readonly persistenceSeconds: number;
}

export interface IpvsService extends IpvsServiceConfig {
  readonly key: IpvsServiceKey;
}

/** Identifies a destination within its service. */
export interface IpvsDestinationKey {
  /** Canonical text of the family of the service. */
  readonly address: string;
  /** 0: packets keep their destination port. */
  readonly port: number;
}

export interface IpvsDestination extends IpvsDestinationKey {
  /** 0: no new connections. */
  readonly weight: number;
}

export interface IpvsDestinationState extends IpvsDestination {
  /** Whether the forwarding method is NAT. `IpvsChange` supports no other method. */
  readonly masquerade: boolean;
  readonly activeConnections: number;
  readonly inactiveConnections: number;
  /** Persistence templates, which bind clients to this destination. */
  readonly persistentConnections: number;
}

/** A change of the table. An edit replaces all fields except the key. */
export type IpvsChange =
  | {
      readonly op: 'add-service' | 'edit-service';
      readonly key: IpvsServiceKey;
      readonly config: IpvsServiceConfig;
    }
  | { readonly op: 'delete-service'; readonly key: IpvsServiceKey }
  | {
      readonly op: 'add-destination' | 'edit-destination';
      readonly key: IpvsServiceKey;
      readonly destination: IpvsDestination;
    }
  | {
      readonly op: 'delete-destination';
      readonly key: IpvsServiceKey;
      readonly destination: IpvsDestinationKey;
    };

/** Timeouts of idle connections in seconds. */
export interface IpvsTimeouts {
  readonly tcp: number;
  /** After a FIN. */
  readonly tcpFin: number;
  readonly udp: number;
}
