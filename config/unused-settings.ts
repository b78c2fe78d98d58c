/** kube-proxy's settings that are accepted and ignored, so that its flags and files work unchanged. */

import { moduleLevels, quantity } from './map-types.ts';
import { type Setting, setting } from './setting.ts';
import {
  anyText,
  boolean,
  decimalNumber,
  duration,
  durationOrNanoseconds,
  nonNegativeInt32,
  optional,
  textMatching,
  type ValueType,
} from './value-types.ts';

const WINDOWS = 'ignored: Windows only';
const LOGGING = 'ignored: log lines go to standard output unbuffered';
const UNUSED_BY_KUBE_PROXY = 'ignored: kube-proxy does not use them either';
const CONTENT_TYPE = 'ignored: the agent requests JSON';
const CLIENT = 'ignored: the agent makes few requests besides lists and watches';

const group = 'unused';
const word = optional(anyText);

function unused<T>(field: string, type: ValueType<T>, value: T, reason: string): Setting<T> {
  return setting(group, { field, type, default: value, help: reason });
}

/** A field of the configuration file that has no flag. */
function fileOnly<T>(field: string, type: ValueType<T>, value: T, reason: string): Setting<T> {
  return { ...unused(field, type, value, reason), fileOnly: true };
}

/** A logging flag: like kube-proxy, it overrides the file. */
function logging<T>(field: string, type: ValueType<T>, value: T, reason = LOGGING): Setting<T> {
  return { ...unused(field, type, value, reason), overridesFile: true };
}

export const UNUSED_SETTINGS = {
  acceptContentTypes: fileOnly(
    'clientConnection.acceptContentTypes',
    word,
    undefined,
    CONTENT_TYPE,
  ),
  kubeApiContentType: unused(
    'clientConnection.contentType',
    anyText,
    'application/vnd.kubernetes.protobuf',
    CONTENT_TYPE,
  ),
  kubeApiQps: unused('clientConnection.qps', decimalNumber, 5, CLIENT),
  kubeApiBurst: unused('clientConnection.burst', nonNegativeInt32, 10, CLIENT),
  configSyncPeriod: unused(
    'configSyncPeriod',
    duration({ zero: false }),
    15 * 60_000,
    'ignored: the agent does not process unchanged objects again',
  ),
  profiling: setting(group, {
    field: 'enableProfiling',
    type: boolean,
    default: false,
    help: 'ignored: /debug/pprof is specific to Go',
  }),
  machineIdFile: setting(group, {
    type: anyText,
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    overridesFile: true,
    help: UNUSED_BY_KUBE_PROXY,
  }),
  bootIdFile: setting(group, {
    type: anyText,
    default: '/proc/sys/kernel/random/boot_id',
    overridesFile: true,
    help: UNUSED_BY_KUBE_PROXY,
  }),
  showHiddenMetricsForVersion: unused(
    'showHiddenMetricsForVersion',
    optional(textMatching('<version>', /^\d+\.\d+$/, 'MAJOR.MINOR')),
    undefined,
    'ignored: the agent has no hidden metrics',
  ),
  logFlushFrequency: logging('logging.flushFrequency', durationOrNanoseconds, 5000),
  vmodule: logging('logging.vmodule', moduleLevels, [], 'ignored: -v applies to the whole agent'),
  logJsonSplitStream: logging('logging.options.json.splitStream', boolean, false),
  logJsonInfoBufferSize: logging('logging.options.json.infoBufferSize', quantity, '0'),
  logTextSplitStream: logging('logging.options.text.splitStream', boolean, false),
  logTextInfoBufferSize: logging('logging.options.text.infoBufferSize', quantity, '0'),
  portRange: fileOnly(
    'portRange',
    optional(textMatching('<range>', /^\d+([-+]\d+)?$/, 'a range of ports such as 300-2000')),
    undefined,
    UNUSED_BY_KUBE_PROXY,
  ),
  winkernelNetworkName: fileOnly('winkernel.networkName', word, undefined, WINDOWS),
  winkernelSourceVip: fileOnly('winkernel.sourceVip', word, undefined, WINDOWS),
  winkernelEnableDsr: fileOnly('winkernel.enableDSR', boolean, false, WINDOWS),
  winkernelRootHnsEndpointName: fileOnly('winkernel.rootHnsEndpointName', word, undefined, WINDOWS),
  winkernelForwardHealthCheckVip: fileOnly(
    'winkernel.forwardHealthCheckVip',
    boolean,
    false,
    WINDOWS,
  ),
  windowsRunAsService: fileOnly('windowsRunAsService', boolean, false, WINDOWS),
};
